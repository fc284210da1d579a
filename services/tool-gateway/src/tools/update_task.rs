//! `update_task`: the status of a task of the board, what came of it, and what it waits for. What it waits for comes first: what is taken
//! away there is no longer in the way of a move.

use serde_json::{Map, Value, json};
use storage::lifecycle::dependencies::{Waits, dependencies_set, result_set};

use super::{
    Running, ToolOutcome, board, body, task_named,
    task_status::{self, is_closed_by},
};
use crate::{arguments::invalid_field, call::Effect, store::place_of};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (tx, account, by) = (running.questions.tx, running.account, running.facts.actor());
    let place = board::own(running, task_named(running)).await?;
    let to = board::status_named(&arguments);
    let result = match arguments.get("result").and_then(Value::as_str) {
        Some(text) if !text.trim().is_empty() => Some(body(&arguments, "result")?),
        _ => None,
    };
    let blockers = board::tasks_named(&arguments, "blocked_by")?;
    if to.is_none() && result.is_none() && blockers.is_none() {
        return Err(invalid_field(
            "status",
            "nothing is to be changed: give a status, a result or blocked_by",
        )
        .into());
    }
    let (mut messages, mut freed) = (Vec::new(), Vec::new());
    if let Some(blockers) = &blockers {
        let Some(owner) = running.facts.owner() else {
            let what = "only an orchestrator says what a task waits for: leave it out, or write to yours";
            return Err(invalid_field("blocked_by", what).into());
        };
        let waits = Waits {
            account,
            task: &place.id,
            blockers,
            board: Some(&owner),
            by: &by,
        };
        let set = dependencies_set(tx, &waits, running.setting).await?;
        let set = set.map_err(|why| board::not_placed(&why))?;
        messages.extend(set.messages);
        freed.extend(set.freed);
    }
    if let Some(result) = result {
        result_set(tx, (account, &place.id), result, running.setting).await?;
    }
    let mut answer = json!({});
    if let Some(to) = to {
        let moved = task_status::moved(running, (place.status, &place.id), to, arguments.get("blocked_on")).await?;
        if let Some(caught) = &moved.caught {
            answer["caught"] = json!({"stage": caught.stage, "question_id": caught.question});
        }
        if is_closed_by(running, &moved) {
            answer["note"] = json!(task_status::CLOSED);
        }
        messages.extend(moved.messages);
        freed.extend(moved.freed);
    }
    let now = place_of(tx, account, &place.id).await?.map(|place| place.status);
    answer["task"] = json!({"id": place.id, "from": place.status, "status": now});
    answer["freed"] = json!(freed);
    Ok(Effect::new(answer, messages))
}
