//! `answer_question`: the asked agent answers a question, or decides on a plan or on finished work.

use serde_json::json;

use super::{Audience, BODY_BYTES_MAX, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect, question_id};

const DESCRIPTION: &str = "\
Answer a question that you were asked by a notification of type `question` or `review`. A question is answered once: the first \
answer counts, yours or another's. Where the notification names verdicts, give one of them in `verdict`: `approved`, \
`changes` with what to change in `text`, or `denied`. Where it names options, give their ids in `options`. Otherwise answer in \
`text`. The text must stand alone: whoever asked does not see your conversation.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "answer_question",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "question_id": question_id(),
                "verdict": {
                    "type": "string",
                    "enum": ["approved", "changes", "denied"],
                    "description": "Your decision on a plan or on finished work. Not for a question.",
                },
                "options": {
                    "type": "array",
                    "items": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 64,
                    },
                    "maxItems": 20,
                    "description": "The ids of the options that you choose.",
                },
                "text": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": BODY_BYTES_MAX,
                    "description": "Your answer in words, or the reason of your decision. At most 16 KiB.",
                },
            },
            "required": ["question_id"],
            "additionalProperties": false,
        }),
        ids: &[("question_id", IdOf::Question)],
        offered_to: Audience::Asked,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Reporting,
            "A notification of type `question` or `review` asks you: answer it with `{answer_question}`, where you have that tool.",
        )],
    }
}
