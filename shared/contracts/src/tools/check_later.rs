//! `check_later`: the agent has itself woken at a time.

use serde_json::json;

use super::{Audience, PolicySection, Reach, ToolDefinition, ToolEffect};

/// 30 days.
pub const AFTER_MINUTES_MAX: i64 = 43_200;
pub const NOTE_BYTES_MAX: usize = 2 * 1024;
/// Timers of a session that wait.
pub const TIMERS_MAX: i64 = 10;
/// Timers in a row, each set in a turn that the one before began.
pub const CHAIN_MAX: i32 = 50;

const DESCRIPTION: &str = "\
Be woken once at a later time, to look at something again: a build that still runs, a deployment, an answer from outside. \
Say when, by `after_minutes` or by `at`, and write a note to yourself that says what to look at and what to do then: the \
note is what you receive. The timer fires once; if there is still something to wait for then, set another. It is cleared \
when the task ends. Do not set a timer for what somebody tells you anyway: messages and answers of people and agents wake \
you by themselves.";

const WORDING: &str = "\
Nothing wakes you because you promised to look again. If something has to be looked at later, set a timer with
  `{check_later}`, and finish your turn.";

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        name: "check_later",
        aliases: &[],
        description: DESCRIPTION,
        parameters: json!({
            "type": "object",
            "properties": {
                "after_minutes": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": AFTER_MINUTES_MAX,
                    "description": "Minutes from now: 1 to 43200 (30 days). Give this or `at`.",
                },
                "at": {
                    "type": "string",
                    "format": "date-time",
                    "description": "A time in RFC 3339 with its offset, for example 2026-08-01T09:00:00+02:00: at least a \
                                    minute and at most 30 days from now. Give this or `after_minutes`.",
                },
                "note": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": NOTE_BYTES_MAX,
                    "description": "What to look at, and what to do then. You receive it as it is. At most 2 KiB.",
                },
            },
            "required": ["note"],
            "additionalProperties": false,
        }),
        ids: &[],
        offered_to: Audience::Everyone,
        effect: ToolEffect::Write,
        reach: Reach::OwnTask,
        moves_task: false,
        runs_alone: true,
        before_plan: false,
        short_form: None,
        wording: &[(PolicySection::Scope, WORDING)],
    }
}
