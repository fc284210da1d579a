//! `no_reply`: the agent has nothing to say (S15).

use serde_json::json;

use super::{Audience, PolicySection, Reach, ToolDefinition, ToolEffect};

const DESCRIPTION: &str = "\
Say that this turn needs no reply. Use it when the notification asks nothing of you and there is nothing to do or to \
report: a routine check that found all well, an acknowledgement, a message meant for somebody else. After this call, \
whatever you answer in this turn is recorded but not posted to anyone, so do not use it when somebody waits for an \
answer.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "no_reply",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "reason": {
                    "type": "string",
                    "maxLength": 1024,
                    "description": "Optional. Why there is nothing to say, in a few words; kept with the turn.",
                },
            },
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::Everyone,
        effect: ToolEffect::None,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: false,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Reporting,
            "If there is nothing to do, call `{no_reply}` and stop. Nothing is posted then.",
        )],
    }
}
