//! `subagent_list`: an agent looks at the subagents of its conversation (C4).

use serde_json::json;

use super::{Audience, Reach, ToolDefinition, ToolEffect};

/// The newest that are shown.
pub const LISTED_MAX: i64 = 50;

const DESCRIPTION: &str = "\
List the subagents that this conversation has made, the newest first: which are at work, since when, until when, and how the \
others ended. There is no use in calling it to wait: results come as a notification.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "subagent_list",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {},
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::Spawner,
        effect: ToolEffect::Read,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[],
    }
}
