//! `memory_write`: an orchestrator writes down what it is to know in later turns (O9).

use domain::decay::{CONTENT_BYTES_MAX, KEY_CHARACTERS_MAX};
use serde_json::json;

use super::{Audience, PolicySection, Reach, ToolDefinition, ToolEffect, memory_read::categories};

const DESCRIPTION: &str = "\
Remember something for later turns: a correction, a preference, who works best on what, how something ended. One fact a memory, in a \
sentence or two. The same key replaces what you wrote under it. What you do not look up fades within months, and of more than 200 memories \
the least relevant one goes.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "memory_write",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "content": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": CONTENT_BYTES_MAX,
                    "description": "What is to be remembered. At most 4 KiB.",
                },
                "category": {
                    "type": "string",
                    "enum": categories(),
                    "description": "What it is about.",
                },
                "key": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": KEY_CHARACTERS_MAX,
                    "description": "Optional. A name under which you will replace it, for example \"billing repository\".",
                },
            },
            "required": ["content", "category"],
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::Own,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Orchestrator,
            "What you are told to do otherwise next time, write down with `{memory_write}`.",
        )],
    }
}
