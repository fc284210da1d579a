//! `/api/orgs/{account}/tasks/{task}/activities`.

use axum::extract::State;
use runtime::http::Problem;
use storage::Accounts;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Activity, store};
use crate::{
    app::App,
    auth::Access,
    body::{Path, Query},
    error::ApiError,
    paging::{Items, List, ListQuery, Shown},
    tasks::{http::TaskPath, store::task_find},
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list))
}

/// What happened to the task, newest first.
#[utoipa::path(get, path = "/api/orgs/{account}/tasks/{task}/activities", tag = "activities", params(ListQuery),
    responses((status = 200, body = Items<Activity>)))]
async fn list(
    State(app): State<App>,
    access: Access,
    Path(path): Path<TaskPath>,
    Query(query): Query<ListQuery>,
) -> Result<Shown, ApiError> {
    let page = query.page(&app, List::of("activities", &access.account, path.task.key()))?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    task_find(&tx, &access.account, &path.task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = store::activity_list(&tx, &access.account, &path.task, &page).await?;
    tx.commit().await?;
    Ok(rows.show(|activity| activity))
}
