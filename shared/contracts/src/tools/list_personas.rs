//! `list_personas`: an orchestrator looks which personas its people may use (O3).

use serde_json::json;

use super::{Audience, PolicySection, Reach, ToolDefinition, ToolEffect};

/// The most that are shown.
pub const LISTED_MAX: i64 = 100;

const DESCRIPTION: &str = "\
List the personas that you may give to a session that you create: those that are shared in the account, and those of the person \
that you work for. A persona says how an agent is to work.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "list_personas",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {},
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::Orchestrator,
        effect: ToolEffect::Read,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Orchestrator,
            "Which personas there are, `{list_personas}` says; choose one only if it is named, or fits better than none.",
        )],
    }
}
