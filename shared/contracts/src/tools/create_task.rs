//! `create_task`: an orchestrator puts a task on its board (O10).

use domain::{TITLE_CHARACTERS_MAX, board::BLOCKERS_MAX};
use serde_json::{Value, json};

use super::{Audience, BODY_BYTES_MAX, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect, session_id};

pub const NAME: &str = "create_task";

const DESCRIPTION: &str = "\
Put a task on your board. It begins as pending, or as blocked if it has to wait for others of your tasks: then it goes on by itself when \
all of these are done. With `session_id` one of your sessions gets it, and is told; without, it waits until you give it away.";

/// Tasks of the board that another one waits for.
pub(super) fn blocked_by(about: &str) -> Value {
    json!({
        "type": "array",
        "maxItems": BLOCKERS_MAX,
        "items": {"type": "string", "minLength": 1, "maxLength": 64},
        "description": format!("Optional. {about} At most {BLOCKERS_MAX}."),
    })
}

pub(super) fn definition() -> ToolDefinition {
    let mut session = session_id();
    session["description"] = json!("Optional. The id or the key of a session of yours that is to work on it.");
    ToolDefinition {
        name: NAME,
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "title": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": TITLE_CHARACTERS_MAX,
                    "description": "What it is, in a few words.",
                },
                "description": {
                    "type": "string",
                    "maxLength": BODY_BYTES_MAX,
                    "description": "Optional. What is to be done. At most 16 KiB.",
                },
                "session_id": session,
                "parent_task_id": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "Optional. The id of the task on your board that it is a part of; the task of the session unless given.",
                },
                "blocked_by": blocked_by("The ids of tasks on your board that have to be done first."),
                "plan_gate": {
                    "type": "string",
                    "enum": ["required"],
                    "description": "Optional. The work begins with a plan that a person approves.",
                },
            },
            "required": ["title"],
            "additionalProperties": false,
        }),
        ids: &[
            ("session_id", IdOf::Session),
            ("parent_task_id", IdOf::OnBoard),
            ("blocked_by", IdOf::OnBoard),
        ],
        offered_to: Audience::Orchestrator,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Orchestrator,
            "Work of several steps goes onto your board with `{create_task}`: what has to wait for what, you say there, and it goes on by itself.",
        )],
    }
}
