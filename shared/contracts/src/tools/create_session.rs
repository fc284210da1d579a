//! `create_session`: an orchestrator gives work to a session of its own: a task, its agent, and a first request (O7).

use domain::TITLE_CHARACTERS_MAX;
use serde_json::json;

use super::{Audience, BODY_BYTES_MAX, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect};

/// Sessions that one turn may create.
pub const CREATED_OF_TURN_MAX: i64 = 5;

const DESCRIPTION: &str = "\
Create a session for one piece of work, and give it its first request. It gets a task of its own, or works on the task that you \
name, and an agent: the one that you name, or the persona's, or the account's. It knows what you write in the request and what is \
on its task; it does not know this conversation. Its work is not the result of this call: look at it later, or wait until you are \
told. If an agent has a session on that task already, the request goes there, and `reused` is true.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "create_session",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "prompt": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": BODY_BYTES_MAX,
                    "description": "What it is to do, and what you want back. At most 16 KiB.",
                },
                "title": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": TITLE_CHARACTERS_MAX,
                    "description": "Optional. The title of its task; the beginning of the request unless given.",
                },
                "agent": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "Optional. The slug or id of an agent.",
                },
                "persona": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "Optional. The slug of a persona.",
                },
                "persona_from": {
                    "type": "string",
                    "enum": ["user", "inferred"],
                    "description": "Optional. user: the person that you work for named the persona; inferred: you chose it. inferred unless given.",
                },
                "plan_gate": {
                    "type": "string",
                    "enum": ["required"],
                    "description": "Optional. A new task begins with a plan that a person approves.",
                },
                "task_id": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "Optional. The id of a task that there is. Otherwise a new one is made.",
                },
            },
            "required": ["prompt"],
            "additionalProperties": false,
        }),
        ids: &[
            ("task_id", IdOf::Task),
            ("agent", IdOf::Agent),
            ("persona", IdOf::Persona),
        ],
        offered_to: Audience::Orchestrator,
        effect: ToolEffect::Write,
        reach: Reach::Account,
        moves_task: true,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Orchestrator,
            "Work goes to a session of its own with `{create_session}`, and further requests to it with `{send_to_session}`.",
        )],
    }
}
