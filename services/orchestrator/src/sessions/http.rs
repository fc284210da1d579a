//! `/api/orgs/{account}/sessions`.

use axum::{Json, extract::State};
use domain::{SessionId, TaskId};
use runtime::http::Problem;
use serde::Deserialize;
use storage::Accounts;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    Session,
    store::{self, Filter},
};
use crate::{
    app::App,
    auth::Access,
    body::{Path, Query},
    error::ApiError,
    notifications::http::agent_read,
    paging::{Items, List, Page, Shown},
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(read))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    #[param(value_type = Option<String>)]
    task: Option<TaskId>,
    /// Id or slug.
    agent: Option<String>,
    /// `true`: only those that are open. `false`: only those that are closed.
    active: Option<bool>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Sessions, newest first.
#[utoipa::path(get, path = "/api/orgs/{account}/sessions", tag = "sessions", params(ListQuery),
    responses((status = 200, body = Items<Session>)))]
async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown, ApiError> {
    let filter = Filter {
        task: query.task.map(|task| task.key()),
        agent: query.agent.as_deref().map(agent_read).transpose()?,
        active: query.active,
    };
    let list = List::of("sessions", &access.account, format_args!("{filter:?}"));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_deref())?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    let rows = store::session_list(&tx, &access.account, &filter, &page).await?;
    tx.commit().await?;
    Ok(rows.show(|session| session))
}

#[derive(Deserialize)]
pub struct SessionPath {
    pub session: SessionId,
}

/// A generation of a session.
#[utoipa::path(get, path = "/api/orgs/{account}/sessions/{session}", tag = "sessions",
    responses((status = 200, body = Session)))]
async fn read(
    State(app): State<App>,
    access: Access,
    Path(path): Path<SessionPath>,
) -> Result<Json<Session>, ApiError> {
    let tx = app.begin(&access.account).await?;
    let session = store::session_find(&tx, &access.account, path.session).await?;
    tx.commit().await?;
    Ok(Json(session.ok_or_else(Problem::not_found)?))
}
