//! `my_tasks`: what a session works on: its task, and the tasks of its board that it was given (O10).

use serde_json::json;

use super::{Audience, Reach, ToolDefinition, ToolEffect, list_tasks::status};

const DESCRIPTION: &str = "\
List the tasks that are yours: the one of this conversation, and those that were given to you besides. You move them on, and say what \
came of them, by their ids.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "my_tasks",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {"status": status()},
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::OnBoard,
        effect: ToolEffect::Read,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[],
    }
}
