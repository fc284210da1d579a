//! `signalbox cancel`: cancels a task, and says what ended with it.

use std::process::ExitCode;

use api::tasks::{Cancel, Task};
use serde_json::Value;

use super::{counted, pause::text};
use crate::{cli::CancelArgs, client::read_as, print::show, text::one_line};

pub(crate) async fn run(args: &CancelArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let cancel = Cancel {
        tree: None,
        reason: text(args.reason.as_deref())?,
        dry_run: Some(args.dry_run),
    };
    let path = ["api", "orgs", &args.of.account, "tasks", &args.task, "cancel"];
    let task: Value = client.post(&path, &cancel).await?;
    show(json, &task, |task| Ok(what_ended(&read_as(task)?, args.dry_run)))
}

fn what_ended(task: &Task, dry_run: bool) -> String {
    let affected = task.affected.unwrap_or_default();
    let count = |count: usize, noun| counted(i64::try_from(count).unwrap_or(i64::MAX), noun);
    let is_cancelled = if dry_run { "would be cancelled" } else { "is cancelled" };
    format!(
        "task {} {is_cancelled}: {} ended, {} cancelled, {} closed",
        one_line(&task.id, 64),
        count(affected.turns, "turn"),
        count(affected.items.cancelled, "notification"),
        count(affected.sessions, "session")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn says_what_ended() {
        let check = |dry_run, [turns, items, sessions]: [u32; 3], expected: &str| {
            let task = json!({"id": "DEMO-7", "title": "t", "description": "", "status": "cancelled", "assignees": [],
                "created_at": "2026-01-02T03:04:05Z", "updated_at": "2026-01-02T03:04:05Z",
                "affected": {"turns": turns, "items": {"cancelled": items, "carried": 0}, "sessions": sessions}});
            assert_eq!(what_ended(&read_as(&task).unwrap(), dry_run), expected);
        };
        check(
            false,
            [1, 2, 1],
            "task DEMO-7 is cancelled: 1 turn ended, 2 notifications cancelled, 1 session closed",
        );
        check(
            true,
            [0, 1, 2],
            "task DEMO-7 would be cancelled: 0 turns ended, 1 notification cancelled, 2 sessions closed",
        );
    }
}
