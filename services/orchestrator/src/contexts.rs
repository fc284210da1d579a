//! `/api/orgs/{account}/tasks/{task}/context`: what is said of a task to whoever joins its work. `storage::lifecycle::task_context` writes it,
//! for people here and for agents in their tools.

use api::contexts::{BODY_BYTES_MAX, NewTaskContext, TaskContext};
use axum::{Json, extract::State, http::StatusCode};
use domain::{KeptContext, TaskId};
use runtime::http::Problem;
use storage::lifecycle::{self, task_context_find, task_context_lock, task_context_write};

use crate::{
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Named, Query},
    error::ApiError,
    holds::store::is_task,
    paging::{Column, List, ListQuery, Listing, Order, Shown},
    route::routes,
};

routes! {
    "contexts": "What is said of a task to whoever joins its work";
    /// The context of a task, in its newest version. 404 with code `task_context_missing`: the task has none.
    GET "/api/orgs/{account}/tasks/{task}/context" Read => read;
    /// Write the next version of a task's context. More than 10,000 characters are cut, and the answer says so. 412 when `if_version` is
    /// not the newest version.
    PUT "/api/orgs/{account}/tasks/{task}/context" ChangeTasks => write or 412 or 422;
    /// The versions of a task's context, newest first. The last 50 are kept.
    GET "/api/orgs/{account}/tasks/{task}/context/versions" Read => versions;
}

async fn read(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
) -> Result<Json<TaskContext>, ApiError> {
    let tx = access.begin(&app).await?;
    let found = task_context_find(&tx, &access.account, &task).await?;
    tx.commit().await?;
    let found = found.ok_or_else(Problem::not_found)?;
    let newest = found.newest.ok_or_else(|| {
        let what = format!(
            "task {0} has no task context: write one with `signalbox context {0} --set FILE` or PUT, or let its agent",
            found.task
        );
        Problem::new(StatusCode::NOT_FOUND, "task_context_missing").detail(what)
    })?;
    Ok(Json(shown(newest)))
}

async fn write(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    JsonBody(new): JsonBody<NewTaskContext>,
) -> Result<Json<TaskContext>, ApiError> {
    if new.body.len() > BODY_BYTES_MAX {
        let what = format!("body: {} bytes; at most {BODY_BYTES_MAX} are taken", new.body.len());
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large")
            .detail(what)
            .into());
    }
    let kept = KeptContext::of(&new.body);
    let kept = kept.ok_or_else(|| Problem::unprocessable("invalid_field", "body: empty"))?;
    let (account, by) = (&access.account, access.caller.actor());
    let tx = access.begin(&app).await?;
    let of = task_context_lock(&tx, account, &task).await?;
    let of = of.ok_or_else(Problem::not_found)?;
    let newest = of.version();
    if let Some(asked) = new.if_version.map(i32::from).filter(|asked| *asked != newest) {
        let what = format!("the newest version is {newest} and not {asked}: read it, then write again");
        let problem = Problem::new(StatusCode::PRECONDITION_FAILED, "context_changed");
        return Err(problem.detail(what).into());
    }
    let setting = app.setting(None, database_now(&tx).await?);
    let (written, event) = task_context_write(&tx, (account, &of), kept, (&by, None), &setting).await?;
    app.commit(tx, vec![event]).await?;
    tracing::info!(%account, task = %of.task, version = written.version, "wrote a task context");
    Ok(Json(shown(written)))
}

async fn versions(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<TaskContext>, ApiError> {
    let page = query.page(&app, List::of(&VERSIONS, "task-contexts", &access.account, task.key()))?;
    let tx = app.begin_list(&access.accounts()).await?;
    if !is_task(&tx, &access.account, &task).await? {
        return Err(Problem::not_found().into());
    }
    let rows = page
        .read(&tx, &VERSIONS, [task.key().into()], "list task contexts")
        .await?;
    tx.commit().await?;
    Ok(rows.show_as(TaskContext::told))
}

/// Relies on the primary key.
pub const VERSIONS: Listing = Listing {
    rows: "select account_id, task_id, version, body, characters, cut_characters, author_kind, author_id, author_name,
            null::text as author_via, turn_id, created_at
        from task_context where account_id = $1 and task_id = $2",
    order: &[("version", Column::Integer)],
    begins: Order::NewestFirst,
    wanted: None,
    bytes: "octet_length(body)",
    names: ("", ""),
};

fn shown(context: lifecycle::TaskContext) -> TaskContext {
    let context = TaskContext {
        version: context.version,
        body: context.body,
        characters: context.size.characters,
        cut_characters: context.size.cut_characters,
        author: context.author,
        turn_id: context.turn_id,
        created_at: context.created_at.into(),
        warning: None,
    };
    context.told()
}
