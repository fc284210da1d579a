//! `task_status`: the agent moves its task, with the same function as all other callers. A terminal status closes the
//! task's sessions, this one included, in this transaction (S3).

use domain::{TaskId, TaskStatus};
use serde_json::{Map, Value, json};
use storage::lifecycle::{
    BlockedOn, NotBlocked, TaskMove, TaskMoved, TaskNotMoved, block_covered, task_block, task_status_set,
};

use super::{
    Running, ToolError, ToolOutcome, ask_question::audience_named, body, task_existing, task_message, task_named,
};
use crate::{
    arguments::invalid_field,
    call::{Effect, ToolAnswer},
    refusal::Refusal,
};

/// Told to whoever has ended its own session.
pub(super) const CLOSED: &str =
    "The task has ended and this session is closed. Make no more tool calls; finish your turn.";

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let to = arguments["status"].as_str().and_then(TaskStatus::parse);
    let to = to.expect("the tool's schema allows only statuses, those of agents");
    let note = match arguments.get("note").and_then(Value::as_str) {
        Some(note) if !note.trim().is_empty() => Some(body(&arguments, "note")?),
        _ => None,
    };
    let row = task_existing(running, task_named(running)).await?;
    let (from, task) = (row.status, row.id);
    let mut messages = Vec::new();
    let mut result = json!({"task_id": task, "from": from, "status": to, "changed": from != to});
    // Before the task ends, so that the thread keeps the intended order. A refusal undoes it.
    if let Some(note) = note {
        let (id, posted) = task_message::post(running, &task, note).await;
        messages.push(posted);
        result["message_id"] = json!(id);
    }
    let moved = moved(running, (from, &task), to, arguments.get("blocked_on")).await?;
    if let Some(caught) = &moved.caught {
        result["status"] = json!(moved.to);
        result["changed"] = json!(from != moved.to);
        result["caught"] = json!({"stage": caught.stage, "question_id": caught.question});
        result["note"] = json!(
            "The work is reviewed before the task is done. Finish your turn; you are told if changes are wanted."
        );
    }
    if is_closed_by(running, &moved) {
        result["note"] = json!(CLOSED);
    }
    messages.extend(moved.messages);
    Ok(Effect::new(result, messages))
}

/// Whether the caller has ended its own session.
pub(super) fn is_closed_by(running: Running<'_>, moved: &TaskMoved) -> bool {
    let mut closed = moved.closed.iter();
    closed.any(|closed| closed.key == running.facts.session_key)
}

/// Moves a task that the caller may move. `on`: who moves it on, where it is to be blocked.
pub(super) async fn moved(
    running: Running<'_>,
    (from, task): (TaskStatus, &TaskId),
    to: TaskStatus,
    on: Option<&Value>,
) -> Result<TaskMoved, ToolError> {
    let (tx, account, setting) = (running.questions.tx, running.account, running.setting);
    if from == TaskStatus::AwaitingApproval {
        return Err(Refusal::AwaitsApproval { task: task.clone() }.told().into());
    }
    let on = on.filter(|_| to == TaskStatus::Blocked);
    let owner = match on.and_then(|on| on["owner"].as_str()) {
        Some(owner) => audience_named(running, "blocked_on", vec![owner]).await?.pop(),
        None => None,
    };
    if to == TaskStatus::Blocked && owner.is_none() && !block_covered(tx, account, task).await? {
        let answer = ToolAnswer::refused(
            "blocked_needs_owner",
            format!("Nothing would move task {task} on: no question is open, no timer is set, and nobody is named."),
            "Nothing was changed. Call again with blocked_on and say who has to do what.",
        );
        return Err(answer.into());
    }
    let by = running.facts.actor();
    let asked = TaskMove {
        account,
        task,
        to,
        by: &by,
        reason: None,
        turn: running.facts.turn.as_ref().map(|turn| turn.id),
        passes_stages: false,
    };
    let moved = task_status_set(tx, &asked, setting).await?;
    let mut moved = moved.map_err(|why| not_moved(running, task, why))?;
    if let Some(owner) = &owner {
        let action = on.and_then(|on| on["action"].as_str()).unwrap_or_default();
        let on = BlockedOn { owner, action };
        let named = task_block(tx, (account, task), on, &by, setting).await?;
        let named = named.map_err(|NotBlocked::NoAgent| invalid_field("blocked_on", "there is no such agent"))?;
        moved.messages.extend(named);
    }
    Ok(moved)
}

pub(super) fn not_moved(running: Running<'_>, task: &TaskId, why: TaskNotMoved) -> ToolAnswer {
    match why {
        TaskNotMoved::NotThere => Refusal::not_there(task, running.facts).told(),
        TaskNotMoved::AwaitsAnswer(_) => Refusal::AwaitsApproval { task: task.clone() }.told(),
        TaskNotMoved::BlockedBy(blockers) => {
            let blockers: Vec<&str> = blockers.iter().map(TaskId::as_str).collect();
            ToolAnswer::refused(
                "blocked_by",
                format!(
                    "Task {task} waits for {}, and cannot be moved there before.",
                    blockers.join(", ")
                ),
                "Nothing was changed. It goes on by itself when all of these are done; finish your turn with what you have.",
            )
        }
    }
}
