//! `/api/orgs/{account}/tasks/{task}/messages`.

use api::{
    messages::{Message, NewMessage, PostedMessage},
    questions::{AnswerText, NewAnswer},
};
use axum::extract::State;
use domain::{AgentId, MessageId, QuestionId, TaskId};
use runtime::http::Problem;
use storage::{
    Setting, StorageError, Tx,
    lifecycle::{self, message_posted, messages_post},
    outbox::Owned,
    question::question_find,
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
    error::{ApiError, invalid_field},
    idempotency::{Answer, Done, Post},
    paging::{List, ListQuery, Shown},
    questions::answer,
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
    let tx = app.begin_list(&access.accounts()).await?;
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
        let assignees = assignees_of(&work.tx, account, vec![row.id.clone()])
            .await?
            .remove(&row.id);
        let mut agents = woken(assignees.unwrap_or_default(), &author);
        let woken_ids: Vec<AgentId> = agents.iter().map(|agent| AgentId(agent.id)).collect();
        let new = lifecycle::NewMessage {
            account,
            task: &task,
            id: MessageId(Uuid::now_v7()),
            author: &author,
            body: &body.body,
            turn: None,
            woke: &woken_ids,
            at: work.now,
        };
        let setting = app.setting(None, work.now);
        messages_post(&work.tx, std::slice::from_ref(&new)).await?;
        let mut messages = vec![message_posted(&setting, (account, Some(&task)), new.id, &author, None)];
        if let Some(question) = body.answers {
            let (asker, more) = answered(&work.tx, &access, (question, &task), &body.body, &setting).await?;
            messages.extend(more);
            // It gets the answer.
            agents.retain(|agent| Some(agent.id) != asker.map(AgentId::uuid));
        }
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

/// The message is the answer to a question of the task. Gives the agent that asked.
async fn answered(
    tx: &Tx,
    access: &Access,
    (question, task): (QuestionId, &TaskId),
    text: &str,
    setting: &Setting<'_>,
) -> Result<(Option<AgentId>, Vec<Owned>), ApiError> {
    let found = question_find(tx, &access.account, question).await?;
    let is_here = found.and_then(|row| row.task).is_some_and(|of| of.key() == task.key());
    if !is_here {
        let what = format!("task {task} has no question {question}");
        return Err(invalid_field("answers", what).into());
    }
    let text = AnswerText::parse(text).map_err(|why| invalid_field("body", format!("as an answer: {why}")))?;
    let given = NewAnswer {
        text: Some(text),
        ..NewAnswer::default()
    };
    let (row, messages) = answer(tx, access, question, given, setting).await?;
    Ok((row.agent_id, messages))
}
