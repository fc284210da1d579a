//! `signalbox handover`: gives a task to another agent, and says what moved with it.

use std::process::ExitCode;

use anyhow::Context;
use api::tasks::{Handover, Task};
use domain::AgentRef;
use serde_json::Value;

use super::counted;
use crate::{cli::HandoverArgs, client::read_as, print::show, text::one_line};

pub(crate) async fn run(args: &HandoverArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let agent = |name: &str| AgentRef::parse(name).with_context(|| format!("{name} names no agent"));
    let handover = Handover {
        from: agent(&args.from)?,
        to: agent(&args.to)?,
        dry_run: Some(args.dry_run),
    };
    let path = ["api", "orgs", &args.of.account, "tasks", &args.task, "handover"];
    let task: Value = client.post(&path, &handover).await?;
    show(json, &task, |task| Ok(what_moved(&read_as(task)?, args)))
}

fn what_moved(task: &Task, args: &HandoverArgs) -> String {
    let affected = task.affected.unwrap_or_default();
    let count = |count: usize, noun| counted(i64::try_from(count).unwrap_or(i64::MAX), noun);
    let goes = if args.dry_run { "would go" } else { "goes" };
    format!(
        "task {} {goes} from {} to {}: {} moved, {} cancelled, {} ended, {} closed",
        one_line(&task.id, 64),
        one_line(&args.from, 64),
        one_line(&args.to, 64),
        count(affected.items.carried, "notification"),
        count(affected.items.cancelled, "notification"),
        count(affected.turns, "turn"),
        count(affected.sessions, "session")
    )
}
