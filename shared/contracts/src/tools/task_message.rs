//! `task_message`: the agent posts to the thread while it works. Its reply at the end of a turn needs no tool.

use serde_json::json;

use super::{Audience, BODY_BYTES_MAX, IdOf, Reach, ToolDefinition, ToolEffect, task_id};

const DESCRIPTION: &str = "\
Post a message to the thread of the task you are working on, where people and other agents can read it. Use it for what \
should be on record before your turn ends: a finding, a decision, a link to a result, progress on long work. Your final \
reply is posted to the thread by itself, so do not post the same text twice. A message wakes nobody: other agents see it \
when they next read the task; to have another agent act, ask it for a response instead. Only the coordinator can post to \
another task.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "task_message",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "task_id": task_id(),
                "body": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": BODY_BYTES_MAX,
                    "description": "The message, as plain text or Markdown. At most 16 KiB.",
                },
            },
            "required": ["task_id", "body"],
            "additionalProperties": false,
        }),
        ids: &[("task_id", IdOf::Task)],
        offered_to: Audience::WithTask,
        effect: ToolEffect::Write,
        reach: Reach::Account,
        moves_task: false,
        runs_alone: false,
        before_plan: true,
        short_form: Some("/agent/task-message"),
        wording: &[],
    }
}
