//! `update_task`: moves a task of a board, says what came of it, and what it waits for (O10).

use serde_json::json;

use super::{
    Audience, BODY_BYTES_MAX, IdOf, Reach, ToolDefinition, ToolEffect,
    create_task::blocked_by,
    task_id,
    task_status::{AGENT_STATUSES, blocked_on},
};

const DESCRIPTION: &str = "\
Change a task on the board: its status, and what came of it. An orchestrator changes the tasks on its own board, and says what they wait \
for; any other session the tasks that it works on. A task that waits for others cannot be moved on before they are done. `done` frees \
the tasks that wait for it, and `done` and `cancelled` close the task's own session.";

pub(super) fn definition() -> ToolDefinition {
    let statuses: Vec<&str> = AGENT_STATUSES.iter().map(|status| status.as_str()).collect();
    ToolDefinition {
        name: "update_task",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "task_id": task_id(),
                "status": {
                    "type": "string",
                    "enum": statuses,
                    "description": "Optional. The new status.",
                },
                "result": {
                    "type": "string",
                    "maxLength": BODY_BYTES_MAX,
                    "description": "Optional. What came of it, for whoever gave it away. At most 16 KiB.",
                },
                "blocked_on": blocked_on(),
                "blocked_by": blocked_by(
                    "For orchestrators: the ids of all tasks on your board that have to be done first, in place of those before; an \
                     empty list for none.",
                ),
            },
            "required": ["task_id"],
            "additionalProperties": false,
        }),
        ids: &[("task_id", IdOf::Task), ("blocked_by", IdOf::OnBoard)],
        offered_to: Audience::Board,
        effect: ToolEffect::Write,
        reach: Reach::Board,
        moves_task: true,
        runs_alone: true,
        before_plan: false,
        short_form: None,
        wording: &[],
    }
}
