//! `create_task`: a task on the orchestrator's board (`storage::lifecycle::board_add`). Its id follows from the call.

use serde_json::{Map, Value, json};
use storage::lifecycle::{NewOnBoard, board_add};

use super::{
    Running, ToolOutcome, board, body,
    children::{child, owner},
    create_session::new_task,
    send_to_session::{ended, hops_left},
};
use crate::{arguments::invalid_field, call::Effect, store::place_of};
use domain::TaskId;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (tx, account) = (running.questions.tx, running.account);
    let owner = owner(running)?;
    let title = body(&arguments, "title")?.trim();
    let description = match arguments.get("description").and_then(Value::as_str) {
        Some(text) if !text.trim().is_empty() => body(&arguments, "description")?,
        _ => "",
    };
    let parent = match arguments.get("parent_task_id").and_then(Value::as_str) {
        Some(text) => {
            let parent = TaskId::parse(text.trim());
            Some(parent.map_err(|why| invalid_field("parent_task_id", &why.to_string()))?)
        }
        None => None,
    };
    let blockers = board::tasks_named(&arguments, "blocked_by")?.unwrap_or_default();
    let worker = match arguments.get("session_id") {
        Some(_) => {
            hops_left(running)?;
            let child = child(running, &arguments).await?;
            if child.task_status.is_terminal() {
                return Err(ended(&child).into());
            }
            Some((child.task, child.agent_id))
        }
        None => None,
    };
    let task = new_task(running)?;
    let by = running.facts.actor();
    let new = NewOnBoard {
        account,
        board: &owner,
        task: &task,
        title,
        description,
        parent: parent.as_ref(),
        blockers: &blockers,
        worker: worker.as_ref().map(|(task, agent)| (task, *agent)),
        is_planned: arguments.contains_key("plan_gate"),
        by: &by,
    };
    let messages = board_add(tx, &new, running.setting).await?;
    let messages = messages.map_err(|why| board::not_placed(&why))?;
    let status = place_of(tx, account, &task).await?.map(|place| place.status);
    Ok(Effect::new(json!({"task_id": task, "status": status}), messages))
}
