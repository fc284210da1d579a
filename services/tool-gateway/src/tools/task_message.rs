//! `task_message`: posts to the thread. Wakes no agent.

use domain::{MessageId, TaskId};
use serde_json::{Map, Value, json};
use storage::{lifecycle::message_posted, outbox::Owned};
use uuid::Uuid;

use super::{Running, ToolOutcome, body, questions::Post, task_existing, task_named};
use crate::call::Effect;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let body = body(&arguments, "body")?;
    let task = task_existing(running, task_named(running)).await?.id;
    let (id, posted) = post(running, &task, body).await;
    Ok(Effect::new(json!({"task_id": task, "message_id": id}), vec![posted]))
}

/// Posts a text in the agent's name. One per call: the message's id is the call's id.
pub(super) async fn post(running: Running<'_>, task: &TaskId, body: &str) -> (MessageId, Owned) {
    let id = MessageId(Uuid::new_v5(&running.call, b"message"));
    let post = Post {
        account: running.account.clone(),
        task: task.clone(),
        id,
        author: running.facts.actor(),
        body: body.to_owned(),
        turn: running.facts.turn.as_ref().map(|turn| turn.id),
        at: running.setting.now,
    };
    let event = message_posted(
        running.setting,
        (running.account, Some(task)),
        id,
        &post.author,
        post.turn,
    );
    running.questions.post(post).await;
    (id, event)
}
