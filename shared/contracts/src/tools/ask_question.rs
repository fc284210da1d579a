//! `ask_question`: the agent asks people or agents, and is answered by a notification (O22).

use serde_json::json;

use super::{Audience, BODY_BYTES_MAX, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect};

/// Whom one question may ask.
pub const ASKED_MAX: usize = 10;
pub const OPTIONS_MAX: usize = 20;

const DESCRIPTION: &str = "\
Ask a question that decides how your work goes on, and that you cannot answer from what you have. By default any member of \
the account may answer; name others in `ask`. Give `options` if the answer is a choice. The answer is not the result of this \
call: it comes as a notification of its own, perhaps much later, so finish your turn after you have asked, or go on with what \
does not depend on it. Ask once and completely: whoever answers does not see your conversation. With `lapse_hours` you are \
told when nobody has answered in time; without it the question stays open. Do not ask for permission to do what you were \
asked to do.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "ask_question",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "question": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": BODY_BYTES_MAX,
                    "description": "The question, complete in itself: what you need to know, why, and what you do with the \
                                    answer. At most 16 KiB.",
                },
                "title": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 200,
                    "description": "Optional. The question in a few words, for lists.",
                },
                "options": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "id": {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": 64,
                                "description": "Short: the answer names it.",
                            },
                            "label": {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": 200,
                                "description": "What the option means.",
                            },
                        },
                        "required": ["id", "label"],
                        "additionalProperties": false,
                    },
                    "minItems": 2,
                    "maxItems": OPTIONS_MAX,
                    "description": "Optional. The possible answers, 2 to 20.",
                },
                "multiple": {
                    "type": "boolean",
                    "description": "Optional. Whether several options may be chosen; one unless given.",
                },
                "free_text": {
                    "type": "boolean",
                    "description": "Optional. Whether a text may be given instead of an option or beside it; true unless given.",
                },
                "ask": {
                    "type": "array",
                    "items": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 160,
                    },
                    "minItems": 1,
                    "maxItems": ASKED_MAX,
                    "description": "Optional. Who may answer: slugs or ids of agents, role:member, role:admin, or user: and an \
                                    id. Admins may always answer.",
                },
                "lapse_hours": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 720,
                    "description": "Optional. After so many hours the question closes unanswered, and you are told.",
                },
            },
            "required": ["question"],
            "additionalProperties": false,
        }),
        ids: &[("ask", IdOf::Agent)],
        offered_to: Audience::Everyone,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Reporting,
            "What you need to know and cannot find out, ask with `{ask_question}`: nobody is asked by a question in your\n  \
             reply. The answer is a notification with the line `Answer to your question`; no other text is one.",
        )],
    }
}
