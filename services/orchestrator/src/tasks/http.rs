//! `/api/orgs/{account}/tasks`.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use domain::{AccountId, AgentId, AgentRef, TaskId, TaskStatus};
use runtime::http::Problem;
use serde::Deserialize;
use serde_json::json;
use storage::{
    Accounts, StorageError, Tx,
    entity::task::Model,
    lifecycle::{self, TaskMove, activity_insert, task_create, task_status_set},
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{NewTask, Task, TaskChange, store};
use crate::{
    agents,
    app::{App, database_now},
    auth::Access,
    body::{JsonBody, Path, Query},
    error::{ApiError, unknown_agent},
    idempotency::{Answer, Begun, Post, Work},
    paging::{Items, List, Page, Shown},
    wire::task_status,
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(read, change))
}

#[derive(Deserialize)]
pub struct TaskPath {
    pub task: TaskId,
}

/// Make a task.
#[utoipa::path(post, path = "/api/orgs/{account}/tasks", tag = "tasks", request_body = NewTask,
    responses((status = 201, body = Task)))]
async fn create(
    State(app): State<App>,
    access: Access,
    Post { body, request }: Post<NewTask>,
) -> Result<Response, ApiError> {
    let checked = body.check(Uuid::now_v7())?;
    let work = match Work::begin(&app, &access, request).await? {
        Begun::Fresh(work) => work,
        Begun::Replay(answer) => return Ok(answer),
    };
    let assignees = resolve(&work.tx, &access.account, &checked.assignees).await?;
    let new = lifecycle::NewTask {
        account: &access.account,
        task: &checked.task,
        title: &body.title,
        description: body.description.as_deref().unwrap_or_default(),
        status: checked.status,
        by: &access.caller.actor(),
    };
    let setting = app.setting(None, work.now);
    let Some(messages) = task_create(&work.tx, &new, &setting).await? else {
        return Err(Problem::conflict(
            "task_exists",
            format!("there is a task {} already, in this or another spelling", checked.task),
        )
        .into());
    };
    store::assignees_replace(&work.tx, &access.account, &checked.task, &assignees).await?;
    let task = read_task(&work.tx, &access.account, &checked.task).await?;
    work.finish(Answer::new(StatusCode::CREATED, &task), messages).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    #[param(schema_with = task_status)]
    status: Option<TaskStatus>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Tasks, newest first.
#[utoipa::path(get, path = "/api/orgs/{account}/tasks", tag = "tasks", params(ListQuery),
    responses((status = 200, body = Items<Task>)))]
async fn list(State(app): State<App>, access: Access, Query(query): Query<ListQuery>) -> Result<Shown, ApiError> {
    let list = List::of("tasks", &access.account, format_args!("{:?}", query.status));
    let page = Page::new(list, &app.settings, query.limit, query.cursor.as_deref())?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    let rows = store::task_list(&tx, &access.account, query.status, &page).await?;
    let (rows, places) = rows.apart();
    let items = with_assignees(&tx, &access.account, rows).await?;
    tx.commit().await?;
    Ok(places.show(items, |task| task))
}

/// A task, in any spelling of its id.
#[utoipa::path(get, path = "/api/orgs/{account}/tasks/{task}", tag = "tasks", responses((status = 200, body = Task)))]
async fn read(State(app): State<App>, access: Access, Path(path): Path<TaskPath>) -> Result<Json<Task>, ApiError> {
    let tx = app.begin(&access.account).await?;
    let row = store::task_find(&tx, &access.account, &path.task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let task = with_assignees(&tx, &access.account, vec![row]).await?.pop();
    tx.commit().await?;
    Ok(Json(task.ok_or_else(Problem::not_found)?))
}

/// Change a task. A terminal status closes its sessions and decides what becomes of all that waits, in the same
/// transaction; reopening changes nothing until the next notification.
#[utoipa::path(patch, path = "/api/orgs/{account}/tasks/{task}", tag = "tasks", request_body = TaskChange,
    responses((status = 200, body = Task)))]
async fn change(
    State(app): State<App>,
    access: Access,
    Path(path): Path<TaskPath>,
    JsonBody(change): JsonBody<TaskChange>,
) -> Result<Json<Task>, ApiError> {
    let assignees = change.check()?;
    let (account, by) = (&access.account, access.caller.actor());
    let tx = app.begin(account).await?;
    // First of all, whatever is changed: then sessions, then the rest. Of two changes at once, one waits here.
    let row = store::task_lock(&tx, account, &path.task)
        .await?
        .ok_or_else(Problem::not_found)?;
    // As it is shown: subjects carry the task that way.
    let task = TaskId::parse(&row.display_id).map_err(|error| StorageError::unreadable("read task", error))?;
    let now = database_now(&tx).await?;
    let mut messages = Vec::new();
    if let Some(to) = change.status {
        let asked = TaskMove {
            account,
            task: &task,
            to,
            by: &by,
            turn: None,
        };
        let moved = task_status_set(&tx, &asked, &app.setting(None, now))
            .await?
            .ok_or_else(Problem::not_found)?;
        messages = moved.messages;
    }
    if let Some(assignees) = assignees {
        let agents = resolve(&tx, account, &assignees).await?;
        store::task_change(&tx, account, &task, (None, None), now).await?;
        store::assignees_replace(&tx, account, &task, &agents).await?;
        activity_insert(
            &tx,
            (account, &task),
            "task.assigned",
            &by,
            json!({"agents": agents}),
            now,
        )
        .await?;
    }
    if change.title.is_some() || change.description.is_some() {
        let fields: Vec<&str> = [
            ("title", change.title.is_some()),
            ("description", change.description.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, given)| given.then_some(name))
        .collect();
        activity_insert(
            &tx,
            (account, &task),
            "task.updated",
            &by,
            json!({"fields": fields}),
            now,
        )
        .await?;
        store::task_change(&tx, account, &task, (change.title, change.description), now).await?;
    }
    let task = read_task(&tx, account, &task).await?;
    app.commit(tx, messages).await?;
    Ok(Json(task))
}

/// The agents that are named, each once; or the name that is nobody's.
async fn resolve(tx: &Tx, account: &AccountId, named: &[AgentRef]) -> Result<Vec<AgentId>, ApiError> {
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let found = agents::store::agents_resolve(tx, account, named).await?;
    let mut agents = named
        .iter()
        .map(|agent| found.get(agent).copied().ok_or_else(|| unknown_agent(agent)))
        .collect::<Result<Vec<AgentId>, Problem>>()?;
    agents.sort_unstable();
    agents.dedup();
    Ok(agents)
}

async fn read_task(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Task, ApiError> {
    let row = store::task_find(tx, account, task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let task = with_assignees(tx, account, vec![row]).await?.pop();
    task.ok_or_else(|| Problem::not_found().into())
}

async fn with_assignees(tx: &Tx, account: &AccountId, rows: Vec<Model>) -> Result<Vec<Task>, StorageError> {
    let keys = rows.iter().map(|row| row.id.clone()).collect();
    let mut assignees = store::assignees_of(tx, account, keys).await?;
    let task = |row: Model| {
        let agents = assignees.remove(&row.id).unwrap_or_default();
        Task::new(row, agents)
    };
    Ok(rows.into_iter().map(task).collect())
}
