//! `subagent_cancel`: an agent ends a subagent of its conversation (C4).

use serde_json::json;

use super::{Audience, IdOf, Reach, ToolDefinition, ToolEffect};

/// The tool's name.
pub const NAME: &str = "subagent_cancel";

const DESCRIPTION: &str = "\
End a subagent of this conversation whose work is no longer wanted. What it is doing is stopped, and so are subagents of its own. \
It counts as ended: the notification with the results says that it was cancelled. One that has ended already stays as it is, and \
the answer says how it ended.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: NAME,
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "branch_id": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "The id of the subagent, as it was given to you.",
                },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "description": "Optional. Why, in a few words; kept with the subagent.",
                },
            },
            "required": ["branch_id"],
            "additionalProperties": false,
        }),
        ids: &[("branch_id", IdOf::Branch)],
        offered_to: Audience::Spawner,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[],
    }
}
