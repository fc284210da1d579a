//! `task_context_write`: the next version of the context of the turn's task.

use domain::KeptContext;
use serde_json::{Map, Value, json};
use storage::lifecycle::{self, task_context_lock};

use super::{Running, ToolOutcome, task_of_turn};
use crate::{arguments::invalid_field, call::Effect, refusal::Refusal};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let kept = KeptContext::of(arguments["body"].as_str().unwrap_or_default());
    let kept = kept.ok_or_else(|| invalid_field("body", "must not be blank"))?;
    let (facts, tx, task) = (running.facts, running.questions.tx, task_of_turn(running));
    let of = task_context_lock(tx, running.account, task).await?;
    let of = of.ok_or_else(|| Refusal::not_there(task, facts).told())?;
    let (by, turn) = (facts.actor(), facts.turn.as_ref().map(|turn| turn.id));
    let written = lifecycle::task_context_write(tx, (running.account, &of), kept, (&by, turn), running.setting).await?;
    let (context, event) = written;
    let size = context.size;
    let mut result = json!({
        "version": context.version,
        "characters": size.characters,
        "cut_characters": size.cut_characters,
    });
    if let Some(warning) = size.warning() {
        result["warning"] = warning.into();
    }
    Ok(Effect::new(result, vec![event]))
}
