//! `list_tasks`: the tasks on an orchestrator's board (O10).

use domain::TaskStatus;
use serde_json::{Value, json};

use super::{Audience, IdOf, PolicySection, Reach, ToolDefinition, ToolEffect, session_id};

const DESCRIPTION: &str = "\
List the tasks on your board, the newest first: what each waits for, which session works on it, and what came of it. Of a long \
description or result you see the beginning.";

/// Tasks in one status only.
pub(super) fn status() -> Value {
    let statuses: Vec<&str> = TaskStatus::ALL.iter().map(|status| status.as_str()).collect();
    json!({
        "type": "string",
        "enum": statuses,
        "description": "Optional. Only tasks in this status.",
    })
}

pub(super) fn definition() -> ToolDefinition {
    let mut session = session_id();
    session["description"] = json!("Optional. Only what this session of yours works on.");
    ToolDefinition {
        name: "list_tasks",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {"status": status(), "session_id": session},
            "additionalProperties": false,
        }),
        ids: &[("session_id", IdOf::Session)],
        offered_to: Audience::Orchestrator,
        effect: ToolEffect::Read,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: true,
        short_form: None,
        wording: &[(
            PolicySection::Orchestrator,
            "What is open, what waits and what came of it, `{list_tasks}` says; what has changed, you write down with `{update_task}`.",
        )],
    }
}
