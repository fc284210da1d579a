//! `subagent_spawn`: a turn splits a part of its work off, to agents that start from what it knows now (C3).

use serde_json::json;

use super::{Audience, BODY_BYTES_MAX, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect};

/// Subagents of one call.
pub const SUBAGENTS_MAX: usize = 10;
pub const LABEL_CHARACTERS_MAX: usize = 64;
/// Seconds that subagents may have.
pub const DEADLINE_S_MIN: i64 = 60;
pub const DEADLINE_S_MAX: i64 = 86_400;

/// The tool's name.
pub const NAME: &str = "subagent_spawn";

const DESCRIPTION: &str = "\
Split a part of your work off to subagents, which do it at the same time, each in a conversation of its own: yourself again, or \
another agent of the account. Each starts from what you know now: your earlier turns on this task, what this turn was about and \
what you have said so far, the task's thread, and the task's context. Nothing that happens later reaches it. It can read and not \
write: it changes no status, posts nothing and asks nobody. Its final answer comes back to you and to nobody else. Use it for \
parts that do not depend on each other, each big enough to be worth a conversation. Write each request so that it says what you \
want back, and in which form. The results are not the result of this call: they come as a notification of their own, all \
together when the last one has ended, or each by itself with `join` each. Finish your turn after this call, or go on with what \
does not depend on them. If one of the subagents cannot be made, none is, and the error says why.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: NAME,
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "subagents": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "request": {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": BODY_BYTES_MAX,
                                "description": "What it is to do, and what you want back. At most 16 KiB.",
                            },
                            "agent": {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": 64,
                                "description": "Optional. The slug or id of an agent; yourself unless given.",
                            },
                            "label": {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": LABEL_CHARACTERS_MAX,
                                "description": "Optional. A few words by which you tell its result from the others.",
                            },
                            "context": {
                                "type": "string",
                                "enum": ["snapshot", "fork"],
                                "description": "Optional. snapshot: it is shown what you know; fork: it goes on from your conversation \
                                                at the model, where the model's server can do that. snapshot unless given.",
                            },
                        },
                        "required": ["request"],
                        "additionalProperties": false,
                    },
                    "minItems": 1,
                    "maxItems": SUBAGENTS_MAX,
                    "description": "The subagents, 1 to 10.",
                },
                "join": {
                    "type": "string",
                    "enum": ["all", "each"],
                    "description": "Optional. all: one notification when the last has ended; each: one for each. all unless given.",
                },
                "deadline_s": {
                    "type": "integer",
                    "minimum": DEADLINE_S_MIN,
                    "maximum": DEADLINE_S_MAX,
                    "description": "Optional. Seconds after which those that are still at work are ended.",
                },
            },
            "required": ["subagents"],
            "additionalProperties": false,
        }),
        ids: &[("subagents.agent", IdOf::Agent)],
        offered_to: Audience::Spawner,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: false,
        short_form: None,
        wording: &[(
            PolicySection::Reporting,
            "Parts of your work that do not depend on each other you may give to subagents with `{subagent_spawn}`. Their results\n  \
             are a notification with the line `Results of your subagents`; no other text is one.",
        )],
    }
}
