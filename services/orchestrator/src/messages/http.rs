//! `/api/orgs/{account}/tasks/{task}/messages`.

use axum::{extract::State, http::StatusCode, response::Response};
use domain::{MessageId, TaskId};
use runtime::http::Problem;
use storage::{
    Accounts, StorageError,
    lifecycle::{self, message_post},
};
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

use super::{
    Message, NewMessage, PostedMessage,
    fan_out::{Posted, notifications, woken},
    store,
};
use crate::{
    app::App,
    auth::Access,
    body::{Path, Query},
    error::ApiError,
    idempotency::{Answer, Begun, Post, Work},
    paging::{Items, List, ListQuery, Shown},
    tasks::{
        http::TaskPath,
        store::{assignees_of, task_find},
    },
};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, post))
}

/// The thread, oldest first.
#[utoipa::path(get, path = "/api/orgs/{account}/tasks/{task}/messages", tag = "messages", params(ListQuery),
    responses((status = 200, body = Items<Message>)))]
async fn list(
    State(app): State<App>,
    access: Access,
    Path(path): Path<TaskPath>,
    Query(query): Query<ListQuery>,
) -> Result<Shown, ApiError> {
    let page = query.page(&app, List::of("messages", &access.account, path.task.key()))?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    task_find(&tx, &access.account, &path.task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = store::message_list(&tx, &access.account, &path.task, &page).await?;
    tx.commit().await?;
    Ok(rows.show(|message| message))
}

/// Say something in the thread. Wakes the task's agents, one notification each.
#[utoipa::path(post, path = "/api/orgs/{account}/tasks/{task}/messages", tag = "messages", request_body = NewMessage,
    responses((status = 201, body = PostedMessage)))]
async fn post(
    State(app): State<App>,
    access: Access,
    Path(path): Path<TaskPath>,
    Post { body, request }: Post<NewMessage>,
) -> Result<Response, ApiError> {
    let (account, author) = (&access.account, body.check(&access.caller)?);
    app.has_room(account)?;
    let work = match Work::begin(&app, &access, request).await? {
        Begun::Fresh(work) => work,
        Begun::Replay(answer) => return Ok(answer),
    };
    let row = task_find(&work.tx, account, &path.task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let task = TaskId::parse(&row.display_id).map_err(|error| StorageError::unreadable("read task", error))?;
    let new = lifecycle::NewMessage {
        account,
        task: &task,
        id: MessageId(Uuid::now_v7()),
        author: &author,
        body: &body.body,
        turn: None,
    };
    let setting = app.setting(None, work.now);
    let mut messages = message_post(&work.tx, &new, &setting).await?.unwrap_or_default();
    let assignees = assignees_of(&work.tx, account, vec![row.id.clone()])
        .await?
        .remove(&row.id);
    let agents = woken(assignees.unwrap_or_default(), &author);
    let posted = Posted {
        account,
        task: &task,
        id: new.id,
        author: &author,
        body: &body.body,
        at: work.now.into(),
    };
    messages.extend(notifications(&app.root, &posted, &agents, &setting.origin));
    app.meters.published("message", agents.len());
    let answer = PostedMessage {
        message: Message {
            id: new.id.uuid(),
            author: author.clone().into(),
            body: body.body.clone(),
            turn_id: None,
            created_at: work.now,
        },
        notified: agents,
    };
    work.finish(Answer::new(StatusCode::CREATED, &answer), messages).await
}
