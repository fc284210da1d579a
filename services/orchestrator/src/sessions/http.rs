//! `/api/orgs/{account}/sessions`.

use api::sessions::Session;
use axum::{Json, extract::State};
use domain::{AgentRef, SessionId, TaskId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::Accounts;

use super::store::{self, Filter};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "sessions": "One agent's continuous work, in generations";
    /// Sessions, newest first.
    GET "/api/orgs/{account}/sessions" Read => list;
    /// A generation of a session.
    GET "/api/orgs/{account}/sessions/{session}" Read => read;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    task: Option<TaskId>,
    /// Id or slug.
    agent: Option<AgentRef>,
    /// `true`: only those that are open. `false`: only those that are closed.
    active: Option<bool>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Session>, ApiError> {
    let filter = Filter {
        task: query.task.map(|task| task.key()),
        agent: query.agent,
        active: query.active,
    };
    let list = List::of(&store::LIST, "sessions", &access.account, format_args!("{filter:?}"));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    let rows = page.read(&tx, &store::LIST, filter.values(), "list sessions").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(session): Named<SessionId>,
) -> Result<Json<Session>, ApiError> {
    let tx = app.begin(&access.account).await?;
    let session = store::session_find(&tx, &access.account, session).await?;
    tx.commit().await?;
    Ok(Json(session.ok_or_else(Problem::not_found)?))
}
