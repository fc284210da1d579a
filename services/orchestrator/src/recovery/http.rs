//! `/api/orgs/{account}/recoveries`.

use api::recoveries::{Dismiss, Recovery};
use axum::extract::State;
use domain::{RecoveryId, RecoveryState, TaskId};
use runtime::http::Problem;
use schemars::JsonSchema;
use serde::Deserialize;
use storage::recovery::recovery_dismiss;

use super::store;
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Post},
    paging::{Cursor, Limit, List, Page, Shown},
    route::routes,
};

routes! {
    "recoveries": "What is done about tasks that do not move on";
    /// Recoveries, newest first.
    GET "/api/orgs/{account}/recoveries" Read => list;
    /// Say that a person has seen to it. The task counts as stalled again once its facts have changed.
    POST "/api/orgs/{account}/recoveries/{recovery}/dismiss" Control => dismiss;
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    state: Option<RecoveryState>,
    task: Option<TaskId>,
    limit: Option<Limit>,
    cursor: Option<Cursor>,
}

async fn list(
    State(app): State<App>,
    access: Access,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Recovery>, ApiError> {
    let task = query.task.as_ref().map(TaskId::key);
    let filter = format!("{:?} {task:?}", query.state);
    let list = List::of(&store::LIST, "recoveries", &access.account, format_args!("{filter}"));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_ref())?;
    let tx = app.begin_list(&access.accounts()).await?;
    let values = [query.state.into(), task.into()];
    let rows = page.read(&tx, &store::LIST, values, "list recoveries").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn dismiss(
    State(app): State<App>,
    access: Access,
    Named(recovery): Named<RecoveryId>,
    Post { once, .. }: Post<Dismiss>,
) -> Result<Answer<200, Recovery>, ApiError> {
    let account = &access.account;
    once.run(&app, access.party(), async |work| {
        let reason = format!("dismissed: by {}", access.caller.actor().name);
        let setting = app.setting(None, work.now);
        let messages = recovery_dismiss(&work.tx, account, recovery, &reason, &setting).await?;
        let found = store::recovery_find(&work.tx, account, recovery).await?;
        Ok(Done::new(found.ok_or_else(Problem::not_found)?).with(messages))
    })
    .await
}
