//! `/api/orgs/{account}/tasks/{task}/activities`.

use axum::{Json, extract::State};
use runtime::http::Problem;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Activity, store};
use crate::{
    app::App,
    auth::Access,
    body::{Path, Query},
    error::ApiError,
    paging::{Items, List, Moment, Page},
    tasks::{http::TaskPath, store::task_find},
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

/// What happened to the task, newest first.
#[utoipa::path(get, path = "/api/orgs/{account}/tasks/{task}/activities", tag = "activities", params(ListQuery),
    responses((status = 200, body = Items<Activity>)))]
async fn list(
    State(app): State<App>,
    access: Access,
    Path(path): Path<TaskPath>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Items<Activity>>, ApiError> {
    let list = List {
        name: "activities",
        account: access.account.as_str(),
        filters: path.task.key().into(),
    };
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_deref())?;
    let tx = app.begin(&access.account).await?;
    task_find(&tx, &access.account, &path.task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = store::activity_list(&tx, &access.account, &path.task, &page).await?;
    tx.commit().await?;
    let (rows, next_cursor) = page.cut(rows, |row| Moment {
        at: row.created_at,
        id: row.id,
    });
    let items = rows.into_iter().map(Activity::from).collect();
    Ok(Json(Items { items, next_cursor }))
}
