//! `list_sessions`: an orchestrator looks how the sessions that it has created stand (O7).

use serde_json::json;

use super::{Audience, PolicySection, Reach, ToolDefinition, ToolEffect};

/// Sessions of one answer.
pub const LISTED_MAX: usize = 50;
pub const LISTED_DEFAULT: usize = 20;
/// Bytes of the newest answer of each.
pub const SUMMARY_BYTES_MAX: usize = 300;

const DESCRIPTION: &str = "\
List the sessions that you have created, the newest activity first, with what each said last, and those in which you answer guests, \
without it. `active`: it works, or has something to work on; `idle`: it waits for something to do; `completed`: it is closed, or its task has ended.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "list_sessions",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "status": {
                    "type": "string",
                    "enum": ["active", "idle", "completed"],
                    "description": "Optional. Only those.",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": LISTED_MAX,
                    "description": "Optional. At most so many, 20 unless given.",
                },
            },
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
            "How what you gave away stands, `{list_sessions}` and `{get_session_status}` say. Do not guess it.",
        )],
    }
}
