//! `task_message`: posts to the thread. Wakes no agent.

use domain::MessageId;
use serde_json::{Map, Value, json};
use storage::lifecycle::{NewMessage, message_post};
use uuid::Uuid;

use super::{Running, ToolError, ToolOutcome, body, task_existing, task_named};
use crate::call::Effect;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let body = body(&arguments, "body")?;
    let task = task_existing(running, task_named(running)).await?.id;
    let (id, messages) = post(running, &task, body).await?;
    Ok(Effect::new(json!({"task_id": task, "message_id": id}), messages))
}

/// Posts a text in the agent's name. One per call: the message's id is the call's id.
pub(super) async fn post(
    running: Running<'_>,
    task: &domain::TaskId,
    body: &str,
) -> Result<(MessageId, Vec<storage::outbox::Owned>), ToolError> {
    let id = MessageId(Uuid::new_v5(&running.call, b"message"));
    let author = running.facts.actor();
    let new = NewMessage {
        account: running.account,
        task,
        id,
        author: &author,
        body,
        turn: running.facts.turn.as_ref().map(|turn| turn.id),
    };
    let messages = message_post(running.tx, &new, running.setting).await?;
    // None: a message of this id exists. That cannot happen, since the call's record was new; it would be harmless.
    Ok((id, messages.unwrap_or_default()))
}
