//! `my_tasks`: the task of the conversation, and those that it was given.

use serde_json::{Map, Value, json};

use super::{
    Running, ToolOutcome,
    board::{shown, status_named},
    task_of_turn,
};
use crate::{call::Effect, store::worker_tasks};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let worker = (task_of_turn(running), running.facts.agent);
    let status = status_named(&arguments);
    let tasks = worker_tasks(running.questions.tx, running.account, worker, status).await?;
    let tasks: Vec<Value> = tasks.iter().map(|task| shown(task, running.account)).collect();
    Ok(Effect::new(json!({"tasks": tasks}), Vec::new()))
}
