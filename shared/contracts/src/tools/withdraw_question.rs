//! `withdraw_question`: the agent takes its own open question back.

use serde_json::json;

use super::{Audience, IdOf, Reach, ToolDefinition, ToolEffect, question_id};

const DESCRIPTION: &str = "\
Take back a question or a plan of yours that is still open, because you have found the answer or it no longer matters. Do it \
before you ask the same thing in other words. A question that has been answered cannot be taken back.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "withdraw_question",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "question_id": question_id(),
                "reason": {
                    "type": "string",
                    "maxLength": 1024,
                    "description": "Optional. Why, for those who were asked.",
                },
            },
            "required": ["question_id"],
            "additionalProperties": false,
        }),
        ids: &[("question_id", IdOf::Question)],
        offered_to: Audience::Everyone,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[],
    }
}
