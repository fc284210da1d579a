//! `send_message`: mail to a person, an orchestrator or a session (O11).

use domain::{MessageType, mail};
use serde_json::json;

use super::{Audience, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect};

const DESCRIPTION: &str = "\
Write to a person, to a person's agent, or to a session that belongs to your work. `@handle` reaches that person's agent; a name, an id \
or `@user:` with an id reaches the person, in the inbox; a session's id or key reaches the agent that works there. Say what it is about: \
they do not see this conversation. An answer comes as mail to you, in a later turn.";

pub(super) fn definition() -> ToolDefinition {
    let types: Vec<&str> = MessageType::ALL.iter().map(|kind| kind.as_str()).collect();
    ToolDefinition {
        name: "send_message",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "to": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": mail::TO_CHARACTERS_MAX,
                    "description": "Whom it is for.",
                },
                "content": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": mail::TOOL_BYTES_MAX,
                    "description": "What you write. At most 16 KiB.",
                },
                "message_type": {
                    "type": "string",
                    "enum": types,
                    "description": "Optional. message: nothing waits for it; notification: something has happened; question: you need an \
                                    answer; escalation: somebody has to act. message unless given.",
                },
                "context_task_id": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "Optional. The id of the task that it is about; yours unless given.",
                },
                "context_ref": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": mail::CONTEXT_BYTES_MAX,
                    "description": "Optional. What else it is about: the address of a pull request, of an issue, of a page.",
                },
                "deliver": {
                    "type": "string",
                    "enum": ["turn", "tool", "interrupt"],
                    "description": "Optional. When an agent that works for you, or with you, gets it. turn: in a turn of its own; tool: after \
                                    the next tool of its turn in progress; interrupt: at once, which ends that turn. turn unless given.",
                },
                "reply_to": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "Optional. The id of the mail that you answer.",
                },
            },
            "required": ["to", "content"],
            "additionalProperties": false,
        }),
        ids: &[
            ("to", IdOf::Recipient),
            ("context_task_id", IdOf::Task),
            ("reply_to", IdOf::Mail),
        ],
        offered_to: Audience::Mail,
        effect: ToolEffect::Write,
        reach: Reach::Account,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Reporting,
            "What a person or another agent has to know goes to them with `{send_message}`; what belongs to the task, into its thread.",
        )],
    }
}
