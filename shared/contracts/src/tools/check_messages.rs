//! `check_messages`: the mail that waits in the caller's queue, now (O11).

use serde_json::json;

use super::{Audience, PolicySection, Reach, ToolDefinition, ToolEffect};

/// Mail of one call, and bytes of its texts.
pub const MESSAGES_MAX: usize = 20;
pub const BYTES_MAX: usize = 32 * 1024;

const DESCRIPTION: &str = "\
Read the mail that waits for you, oldest first, without waiting for a turn of its own. What you read this way does not come again: it \
belongs to this turn. The answer says how much is left.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "check_messages",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({"type": "object", "properties": {}, "additionalProperties": false}),
        ids: &[],
        offered_to: Audience::Mail,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Reporting,
            "Before you begin something long, or end it, look with `{check_messages}` whether somebody has written to you.",
        )],
    }
}
