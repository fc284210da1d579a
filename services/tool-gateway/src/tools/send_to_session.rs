//! `send_to_session`: a further request of an orchestrator to one of its sessions: a message in the thread of the session's task, and a
//! notification that shows it to the agent. Both ids follow from the call.

use contracts::notification::NotificationMessage;
use domain::{Deliver, NotificationId, QueueMode, TaskId};
use serde_json::{Map, Value, json};
use storage::outbox::Owned;
use uuid::Uuid;

use super::{Running, ToolError, ToolOutcome, body, children::child, task_message};
use crate::{
    call::{Effect, ToolAnswer},
    store::ChildRow,
};

/// The type of what an orchestrator asks for.
const KIND: &str = "request";

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let text = body(&arguments, "message")?;
    hops_left(running)?;
    let child = child(running, &arguments).await?;
    if child.task_status.is_terminal() {
        return Err(ended(&child).into());
    }
    let deliver = arguments
        .get("deliver")
        .and_then(Value::as_str)
        .and_then(Deliver::parse);
    let mode = deliver.unwrap_or(Deliver::Turn).mode(QueueMode::Followup);
    let (message, posted) = task_message::post(running, &child.task, text).await;
    let (id, told) = request(running, (&child.task, child.agent_id), text, |asked| {
        NotificationMessage {
            message_id: Some(message),
            queue_mode: Some(mode),
            ..asked
        }
    });
    let result = json!({
        "notification_id": id,
        "session_key": child.session_key,
        "message_id": message,
        "note": "Its answer is not this result.",
    });
    Ok(Effect::new(result, vec![posted, told]))
}

pub(super) fn ended(child: &ChildRow) -> ToolAnswer {
    ToolAnswer::refused(
        "task_ended",
        format!(
            "Task {} has ended ({}), and its session with it.",
            child.task, child.task_status
        ),
        "Nothing was sent. Create another session for further work.",
    )
}

/// The notification for the agent of a session on a task. Its id follows from the call.
pub(super) fn request(
    running: Running<'_>,
    (task, agent): (&TaskId, domain::AgentId),
    text: &str,
    with: impl FnOnce(NotificationMessage) -> NotificationMessage,
) -> (NotificationId, Owned) {
    let id: NotificationId = Uuid::new_v5(&running.call, b"request").into();
    let mut asked = NotificationMessage::new(KIND, running.facts.actor(), String::new(), text.to_owned());
    asked.title = None;
    if let Some(turn) = &running.facts.turn {
        asked = asked.with("turn_id", turn.id.to_string());
    }
    let asked = asked.with("tool_call_id", running.call.to_string());
    let told = running
        .setting
        .agent_told((running.account, Some(task)), (agent, &id), with(asked));
    (id, told)
}

/// Refuses what the resolver would: agents have woken each other too often.
pub(super) fn hops_left(running: Running<'_>) -> Result<(), ToolError> {
    let (hops, most) = (running.facts.hops(), running.branches.hops_max);
    if hops < most {
        return Ok(());
    }
    let answer = ToolAnswer::refused(
        "hop_limit",
        format!("Agents have woken each other {hops} times in a row to get here, at most {most} times."),
        "Nothing was changed. Say in your reply what is left.",
    );
    Err(answer.into())
}
