//! `forward_to_user`: the account's orchestrator passes on what is one person's (O8).

use domain::mail;
use serde_json::json;

use super::{Audience, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect};

const DESCRIPTION: &str = "\
Pass something on to the agent of the person whom it concerns. That agent gets your text as mail, with the name of whoever wrote what you \
are working on, and decides what to do: say what happened and what is wanted, since it does not see this conversation.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "forward_to_user",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "user_id": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "The id of the person.",
                },
                "message": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": mail::TOOL_BYTES_MAX,
                    "description": "What you pass on. At most 16 KiB.",
                },
            },
            "required": ["user_id", "message"],
            "additionalProperties": false,
        }),
        ids: &[("user_id", IdOf::Recipient)],
        offered_to: Audience::Account,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Orchestrator,
            "What is for one person, and comes to you, goes on to that person's orchestrator with `{forward_to_user}`.",
        )],
    }
}
