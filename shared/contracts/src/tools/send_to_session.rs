//! `send_to_session`: an orchestrator writes to one of the sessions that it has created (O7).

use serde_json::json;

use super::{Audience, BODY_BYTES_MAX, IdOf, Reach, ToolDefinition, ToolEffect};

const DESCRIPTION: &str = "\
Write to one of the sessions that you have created: a further request, an answer, a correction. It is posted in the thread of the \
session's task, and its agent gets it in its next turn. The answer is not the result of this call: look at the session later, or \
wait until you are told.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "send_to_session",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "session_id": super::session_id(),
                "message": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": BODY_BYTES_MAX,
                    "description": "What you write. At most 16 KiB.",
                },
                "deliver": {
                    "type": "string",
                    "enum": ["turn", "tool", "interrupt"],
                    "description": "Optional. turn: in its next turn; tool: after the next tool of the turn in progress; interrupt: at \
                                    once, which ends the turn in progress. turn unless given.",
                },
            },
            "required": ["session_id", "message"],
            "additionalProperties": false,
        }),
        ids: &[("session_id", IdOf::Session)],
        offered_to: Audience::Orchestrator,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[],
    }
}
