//! `submit_plan`: the agent submits its plan for approval, which ends its turn (O22).

use serde_json::json;

use super::{Audience, BODY_BYTES_MAX, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect, task_id};

/// The tool's name: a finished call of it ends its turn.
pub const NAME: &str = "submit_plan";

const DESCRIPTION: &str = "\
Submit your plan for the task before you carry it out, where a plan is required or you were asked for one. Say what you will \
change and where (files, systems), how you will do it, what is in scope and what is not, and how you will know that it works. \
The task waits for approval, and your turn ends with this call: make it the last thing that you do. The plan is posted as your \
reply. You are told the decision by a notification. A new plan takes the place of one that still waits.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: NAME,
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "task_id": task_id(),
                "plan": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": BODY_BYTES_MAX,
                    "description": "The whole plan: files, approach, scope, and how you check the result. At most 16 KiB.",
                },
                "summary": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "description": "The plan in one or two sentences, for whoever approves it.",
                },
            },
            "required": ["task_id", "plan", "summary"],
            "additionalProperties": false,
        }),
        ids: &[("task_id", IdOf::Task)],
        offered_to: Audience::WithTask,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: true,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Reporting,
            "If a tool answers `plan_required`, or you were asked for a plan, submit it with `{submit_plan}`; begin the work when\n  \
             you are told that it is approved.",
        )],
    }
}
