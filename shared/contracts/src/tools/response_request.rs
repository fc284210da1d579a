//! `response_request`: the only tool by which an agent wakes another.

use serde_json::json;

use super::{Audience, BODY_BYTES_MAX, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect};

/// The maximum number of agents in one call.
pub const AGENTS_MAX: usize = 10;

const DESCRIPTION: &str = "\
Ask other agents of this account to act: each is woken with your text, works in a session of its own, and answers in the \
task's thread. Use it to hand over a part of the work, to ask for a review, or to ask a question that another agent is \
the right one for. Write a text that stands alone: the other agent does not see your conversation; say what you want \
done, on which material, and how you will recognise a good answer. The answer is not the result of this call, and there \
is no use in waiting for it: it is posted to the task's thread when the other agent is done, so finish your turn; if you \
have to act on it, say in your text that you are to be asked in return. Do not ask yourself, do not ask the same agent \
twice for the same thing, and do not merely thank or acknowledge: every request costs a turn. \
If one of the names is unknown, nobody is asked and the error says which.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "response_request",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "agents": {
                    "type": "array",
                    "items": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 64,
                    },
                    "minItems": 1,
                    "maxItems": AGENTS_MAX,
                    "description": "Whom to ask: slugs (for example reviewer) or ids of agents. At most 10.",
                },
                "body": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": BODY_BYTES_MAX,
                    "description": "What you want from them, complete in itself. At most 16 KiB.",
                },
                "task_id": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                    "description": "Optional. The task that it is about: the one you are working on unless given. Only \
                                    the coordinator can name another one, and has to, since nobody else is woken in \
                                    its chat.",
                },
            },
            "required": ["agents", "body"],
            "additionalProperties": false,
        }),
        ids: &[("agents", IdOf::Agent), ("task_id", IdOf::Task)],
        offered_to: Audience::Worker,
        effect: ToolEffect::Write,
        reach: Reach::Account,
        moves_task: false,
        runs_alone: false,
        before_plan: false,
        short_form: Some("/agent/response-request"),
        wording: &[
            (
                PolicySection::Reporting,
                "To get another agent's help or opinion, call `{response_request}`; no other message of yours wakes another \
                 agent.",
            ),
            (
                PolicySection::Coordinator,
                "Delegate with `{response_request}`: name the agents, the task, what you expect back and by when. One \
                 request an agent.",
            ),
        ],
    }
}
