//! `list_tasks`: the tasks on the orchestrator's board, the newest first.

use domain::TaskStatus;
use serde_json::{Map, Value, json};

use super::{
    Running, ToolOutcome,
    board::{shown, status_named},
    children::{child, owner},
};
use crate::{call::Effect, store::board_list};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let owner = owner(running)?;
    let worker = match arguments.get("session_id") {
        Some(_) => Some(child(running, &arguments).await?),
        None => None,
    };
    let worker = worker.as_ref().map(|child| (&child.task, child.agent_id));
    let statuses = status_named(&arguments).map_or_else(|| TaskStatus::ALL.to_vec(), |status| vec![status]);
    let tasks = board_list(running.questions.tx, running.account, &owner, &statuses, worker).await?;
    let tasks: Vec<Value> = tasks.iter().map(|task| shown(task, running.account)).collect();
    Ok(Effect::new(json!({"tasks": tasks}), Vec::new()))
}
