//! `task_context_write`: the agent says what is being built, for whoever joins the work on its task (X1).

use serde_json::json;

use super::{Audience, Reach, ToolDefinition, ToolEffect};

/// The tool's name: a call that lacks the context names it.
pub const NAME: &str = "task_context_write";

const DESCRIPTION: &str = "\
Write the context of the task you are working on: what is being built and why, the key terms and what they mean here, and the \
details that matter (constraints, decisions, names of files and systems). Write it for somebody who knows nothing of the task. \
Models outside and agents that work on a part are given this text and nothing else of the task, so without it they guess. Write \
it before you call on any of them, and again when what it says has changed: the whole text each time, since a new version takes \
the place of the one before. At most 10,000 characters are kept; what is longer is cut, and the result says so. People read and \
correct it too.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: NAME,
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "body": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": crate::tool::ARGUMENTS_BYTES_MAX,
                    "description": "The whole context, as plain text or Markdown. 10,000 characters are kept.",
                },
            },
            "required": ["body"],
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::WithTask,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[],
    }
}
