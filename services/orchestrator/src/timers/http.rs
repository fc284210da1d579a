//! `/api/orgs/{account}/timers`.

use api::timers::Timer;
use axum::{Json, extract::State};
use domain::{TaskId, TimerId, TimerState};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::timer::{Scope, timers_clear};

use super::store;
use crate::{
    app::{App, database_now},
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "timers": "What agents have asked to be woken for";
    /// Timers, newest first.
    GET "/api/orgs/{account}/timers" Read => list;
    /// Clear a timer: it will not fire. One that has fired, or was cleared, stays as it is.
    DELETE "/api/orgs/{account}/timers/{timer}" Control => clear;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// Only those of this task.
    task: Option<TaskId>,
    state: Option<TimerState>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Timer>, ApiError> {
    let task = query.task.as_ref().map(TaskId::key);
    let filters = format!("{task:?} {:?}", query.state);
    let list = List::of(&store::LIST, "timers", &access.account, filters);
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let values = [task.into(), query.state.into()];
    let rows = page.read(&tx, &store::LIST, values, "list timers").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn clear(State(app): State<App>, access: Access, Named(timer): Named<TimerId>) -> Result<Json<Timer>, ApiError> {
    let account = &access.account;
    let tx = access.begin(&app).await?;
    let setting = app.setting(None, database_now(&tx).await?);
    let reason = format!("cleared: by {}", access.caller.actor().name);
    let messages = timers_clear(&tx, account, Scope::One(timer), &reason, &setting).await?;
    let found = store::timer_find(&tx, account, timer).await?;
    let found = found.ok_or_else(Problem::not_found)?;
    let was_waiting = !messages.is_empty();
    app.commit(tx, messages).await?;
    if was_waiting {
        tracing::info!(%account, timer_id = %timer, "cleared a timer");
    }
    Ok(Json(found))
}
