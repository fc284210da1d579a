//! `task_status`: the agent sets its task's status (S3, S5).

use domain::TaskStatus;
use serde_json::{Value, json};

use super::{Audience, BODY_BYTES_MAX, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect, task_id};

/// The statuses that an agent may set. Not `inbox` and `archived`, by which people sort their work, and not
/// `awaiting_approval`, which is a gate: the agent behind it must not open it.
pub const AGENT_STATUSES: &[TaskStatus] = &[
    TaskStatus::Assigned,
    TaskStatus::Pending,
    TaskStatus::InProgress,
    TaskStatus::Review,
    TaskStatus::Blocked,
    TaskStatus::Done,
    TaskStatus::Failed,
    TaskStatus::Cancelled,
];

const DESCRIPTION: &str = "\
Set the status of the task you are working on. Do this when the work changes state, not to repeat the status it already \
has: `in_progress` when you start, `review` when the result is ready for somebody to look at, `blocked` when you cannot \
go on (name in `blocked_on` who has to do what, unless you have asked a question or set a timer), `failed` when it cannot be done (say why), `done` only \
when everything that was asked is finished. `done` and `cancelled` end the task: this session closes at once, and tool \
calls after it are refused, so make it your last call and do everything else first. Only the coordinator can set the \
status of another task. A task that waits for approval can only be moved by whoever approves.";

const WORDING: &str = "\
Report the task's status with `{task_status}` when it changes: `in_progress` when you take it up, `blocked` with the
  reason when you cannot go on, `review` when somebody should look, `done` only when nothing is left to do. Moving a
  task to `done` ends this conversation, so post what people should know first, with `{task_message}`.";

/// Who moves a blocked task on.
pub(super) fn blocked_on() -> Value {
    json!({
        "type": "object",
        "properties": {
            "owner": {
                "type": "string",
                "minLength": 1,
                "maxLength": 160,
                "description": "An agent's slug or id, role:member, role:admin, or user: and an id.",
            },
            "action": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1024,
                "description": "What the owner has to do, in a sentence.",
            },
        },
        "required": ["owner", "action"],
        "additionalProperties": false,
        "description": "With `blocked`: who has to do what before you can go on. Needed unless a question of \
                        the task is open or a timer is set. An agent is told at once.",
    })
}

pub(super) fn definition() -> ToolDefinition {
    let statuses: Vec<&str> = AGENT_STATUSES.iter().map(|status| status.as_str()).collect();
    ToolDefinition {
        name: "task_status",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "task_id": task_id(),
                "status": {
                    "type": "string",
                    "enum": statuses,
                    "description": "The new status.",
                },
                "note": {
                    "type": "string",
                    "maxLength": BODY_BYTES_MAX,
                    "description": "Optional. One or two sentences for the people on the task: what is done, what is \
                                    missing, what you need from whom. Posted to the task's thread. At most 16 KiB.",
                },
                "blocked_on": blocked_on(),
            },
            "required": ["task_id", "status"],
            "additionalProperties": false,
        }),
        ids: &[("task_id", IdOf::Task)],
        offered_to: Audience::WithTask,
        effect: ToolEffect::Write,
        reach: Reach::Account,
        moves_task: true,
        runs_alone: true,
        before_plan: false,
        short_form: Some("/agent/task-status"),
        wording: &[(PolicySection::Reporting, WORDING)],
    }
}
