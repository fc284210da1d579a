//! `withdraw_question`: the agent takes back a question of its own.

use serde_json::{Map, Value};
use storage::lifecycle::question::Ending;

use super::{
    Running, ToolOutcome,
    answer_question::{end, not_found, question_named},
};
use crate::call::ToolAnswer;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let row = question_named(running, &arguments).await?;
    let owner = running.facts.owner();
    // What another person's orchestrator asks is theirs alone.
    if row.orchestrator.is_some() && row.orchestrator != owner {
        return Err(not_found().into());
    }
    // All orchestrators of an account are one agent.
    if row.agent_id != Some(running.facts.agent) || row.orchestrator != owner {
        let answer = ToolAnswer::refused(
            "not_asker",
            "This question is not yours.",
            "Nothing was changed. Only whoever asked, or a person, can take a question back.",
        );
        return Err(answer.into());
    }
    let by = running.facts.actor();
    let ending = Ending::Withdrawn {
        by: &by,
        reason: arguments
            .get("reason")
            .and_then(Value::as_str)
            .filter(|reason| !reason.trim().is_empty()),
        is_asker: true,
    };
    end(running, row.id, &ending, running.setting).await
}
