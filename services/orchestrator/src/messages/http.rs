//! `/api/orgs/{account}/tasks/{task}/messages`.

use api::messages::{Message, NewMessage, PostedMessage};
use axum::extract::State;
use domain::{MessageId, TaskId};
use runtime::http::Problem;
use storage::{
    Accounts, StorageError,
    lifecycle::{self, message_posted, messages_post},
};
use uuid::Uuid;

use super::{
    author_of,
    fan_out::{Posted, notifications, woken},
    store::LIST,
};
use crate::{
    app::App,
    auth::Access,
    body::{Named, Query},
    error::ApiError,
    idempotency::{Answer, Done, Post},
    paging::{List, ListQuery, Shown},
    route::routes,
    tasks::store::{assignees_of, task_find},
};

routes! {
    "messages": "A task's thread";
    /// The thread, oldest first.
    GET "/api/orgs/{account}/tasks/{task}/messages" Read => list;
    /// Post a message into the thread. Wakes the task's agents, one notification each.
    POST "/api/orgs/{account}/tasks/{task}/messages" PostMessages => post;
}

async fn list(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Query(query): Query<ListQuery>,
) -> Result<Shown<Message>, ApiError> {
    let page = query.page(&app, List::of(&LIST, "messages", &access.account, task.key()))?;
    let tx = app.begin_list(&Accounts::one(&access.account)).await?;
    task_find(&tx, &access.account, &task)
        .await?
        .ok_or_else(Problem::not_found)?;
    let rows = page.read(&tx, &LIST, [task.key().into()], "list messages").await?;
    tx.commit().await?;
    Ok(rows.show())
}

async fn post(
    State(app): State<App>,
    access: Access,
    Named(task): Named<TaskId>,
    Post { body, once }: Post<NewMessage>,
) -> Result<Answer<201, PostedMessage>, ApiError> {
    let (account, author) = (&access.account, author_of(&body, &access.caller)?);
    app.has_room(account)?;
    once.run(&app, access.party(), async |work| {
        let row = task_find(&work.tx, account, &task)
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
            at: work.now,
        };
        let setting = app.setting(None, work.now);
        messages_post(&work.tx, std::slice::from_ref(&new)).await?;
        let mut messages = vec![message_posted(&setting, (account, Some(&task)), new.id, &author, None)];
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
                author: author.clone(),
                body: body.body.to_string(),
                turn_id: None,
                created_at: work.now.into(),
            },
            notified: agents,
        };
        Ok(Done::new(answer).with(messages))
    })
    .await
}
