//! `task_context_read`: the newest version of the context of the turn's task; in a branch, the one that its parent knew.

use serde_json::{Map, Value, json};
use storage::lifecycle::{TaskContext, task_context_find};

use super::{Running, ToolOutcome, task_of_turn};
use crate::{call::Effect, refusal::Refusal, store};

pub(super) async fn run(running: Running<'_>, _: Map<String, Value>) -> ToolOutcome {
    if let Some(branch) = running.facts.branch {
        let known = store::context_of_branch(running.questions.tx, running.account, branch.id).await?;
        let result = known.map_or_else(|| json!({"task_context": null}), shown);
        return Ok(Effect::new(result, Vec::new()));
    }
    let task = task_of_turn(running);
    let found = task_context_find(running.questions.tx, running.account, task).await?;
    let found = found.ok_or_else(|| Refusal::not_there(task, running.facts).told())?;
    let result = found.newest.map_or_else(|| json!({"task_context": null}), shown);
    Ok(Effect::new(result, Vec::new()))
}

fn shown(context: TaskContext) -> Value {
    let TaskContext {
        version,
        body,
        size,
        author,
        ..
    } = context;
    let mut shown = json!({"version": version, "body": body, "author": author});
    if let Some(warning) = size.warning() {
        shown["warning"] = warning.into();
    }
    shown
}
