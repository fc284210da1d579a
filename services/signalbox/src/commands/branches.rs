//! `signalbox branches`: the parts of a turn's work that other sessions do at the same time.

use std::process::ExitCode;

use anyhow::Context;
use api::{
    branches::{Branch, Cancellation},
    text::Text,
};
use domain::BranchState;
use serde_json::Value;

use super::{filters, moment};
use crate::{
    cli::{BranchArgs, BranchCancelArgs, BranchesArgs, BranchesCommand, BranchesFilter},
    client::read_as,
    print::show,
    table::Table,
    text::one_line,
};

const LABEL_CHARS_MAX: usize = 40;

pub(crate) async fn run(args: &BranchesArgs, json: bool) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => list(&args.filter, json).await,
        Some(BranchesCommand::List(filter)) => list(filter, json).await,
        Some(BranchesCommand::Show(args)) => read(args, json).await,
        Some(BranchesCommand::Cancel(args)) => cancel(args, json).await,
    }
}

async fn list(filter: &BranchesFilter, json: bool) -> anyhow::Result<ExitCode> {
    let list = &filter.list;
    let query = filters([("state", filter.state.map(|state| state.as_str()))]);
    let task = filter.task.as_deref().unwrap_or_default();
    let path = ["api", "orgs", &list.of.account, "tasks", task, "branches"];
    let branches = list.of.access.client()?.list(&path, &query, list.limit.into()).await?;
    show(json, &branches, |branches| table(branches))
}

fn path<'a>(args: &'a BranchArgs, rest: &[&'a str]) -> Vec<&'a str> {
    [&["api", "orgs", &args.of.account, "branches", &args.id], rest].concat()
}

async fn read(args: &BranchArgs, json: bool) -> anyhow::Result<ExitCode> {
    let branch: Value = args.of.access.client()?.get(&path(args, &[]), &[]).await?;
    show(json, &branch, |branch| Ok(in_full(&read_as(branch)?)))
}

async fn cancel(args: &BranchCancelArgs, json: bool) -> anyhow::Result<ExitCode> {
    let reason = args.reason.as_deref().map(Text::parse).transpose();
    let body = Cancellation {
        reason: reason.map_err(anyhow::Error::msg).context("--reason")?,
    };
    let client = args.branch.of.access.client()?;
    // Read first: the answer to a cancellation does not say whether the branch had ended before.
    let before: Branch = client.get(&path(&args.branch, &[]), &[]).await?;
    let branch: Value = client.post(&path(&args.branch, &["cancel"]), &body).await?;
    show(json, &branch, |branch| {
        Ok(what_followed(&before, &read_as(branch)?, &body))
    })
}

fn what_followed(before: &Branch, branch: &Branch, asked: &Cancellation) -> String {
    let was_live = before.state == BranchState::Live.as_str();
    if was_live && branch.state == BranchState::Cancelled.as_str() {
        return ended(branch);
    }
    let reason = match asked.reason {
        Some(_) => "the reason was not recorded",
        None => "nothing was cancelled",
    };
    format!("{}; it had ended already, and {reason}", ended(branch))
}

fn table(branches: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&["BRANCH", "STATE", "AGENT", "CONTEXT", "JOIN", "SINCE", "ENDED", "LABEL"]);
    for branch in branches {
        let branch: Branch = read_as(branch)?;
        table.row([
            &branch.id.to_string(),
            &branch.state,
            &branch.agent.slug,
            &branch.context,
            &branch.join,
            &moment(Some(branch.created_at)),
            &moment(branch.ended_at),
            &one_line(branch.label.as_deref().unwrap_or_default(), LABEL_CHARS_MAX),
        ]);
    }
    Ok(table.render("no branches"))
}

fn ended(branch: &Branch) -> String {
    let detail = branch
        .detail
        .as_deref()
        .map(|detail| format!(", {}", one_line(detail, 200)));
    format!(
        "branch {} is {}{}",
        branch.id,
        one_line(&branch.state, 32),
        detail.unwrap_or_default()
    )
}

/// Texts of others keep to their lines.
fn in_full(branch: &Branch) -> String {
    let lines = |text: &str| -> String {
        text.lines()
            .map(|line| format!("  {}\n", one_line(line, 400)))
            .collect()
    };
    let mut text = format!(
        "{}\n{} ({}) on {}, {} of its call {}, depth {}, until {}\nsession {}, spawned by turn {} of session {}\n",
        ended(branch),
        one_line(branch.label.as_deref().unwrap_or("no label"), LABEL_CHARS_MAX),
        one_line(&branch.agent.slug, 64),
        one_line(&branch.task, 64),
        branch.ordinal,
        branch.group_id,
        branch.depth,
        moment(Some(branch.deadline_at)),
        branch.session_id,
        branch.parent_turn_id,
        branch.parent_session_id,
    );
    let base = &branch.base;
    text.push_str(&format!(
        "knows ({}) {} messages and {} activities of \"{}\", {}\nasked:\n{}",
        one_line(&branch.context, 32),
        base.messages,
        base.activities,
        one_line(&base.title, 200),
        one_line(&base.status, 32),
        lines(&branch.request),
    ));
    if let Some(result) = &branch.result {
        text.push_str(&format!("result:\n{}", lines(result)));
    }
    if branch.result_cut_bytes > 0 {
        text.push_str(&format!("and {} bytes that were not kept\n", branch.result_cut_bytes));
    }
    let joined = branch
        .joined_item
        .as_ref()
        .map(|item| format!("its parent got it with {item}\n"));
    text + joined.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::Cli;

    fn branch() -> Value {
        let id = |n: u8| format!("0190b5a8-0000-7000-8000-{n:012}");
        let base = json!({"title": "The parser", "status": "active", "context_version": 2, "last_turn": null, "messages": 3,
            "activities": 4, "newest_message": null, "sha256": "ab"});
        json!({"id": id(1), "group_id": id(2), "ordinal": 1, "task": "DEMO-1", "parent_session_id": id(3), "parent_turn_id": id(4),
            "session_id": id(5), "agent": {"id": id(6), "slug": "reviewer"}, "depth": 1, "label": "tests", "request": "Look at\n\u{1b}[31m it",
            "context": "snapshot", "join": "all", "base": base, "deadline_at": "2026-01-02T04:04:05Z", "state": "finished",
            "detail": null, "result": "It holds", "result_cut_bytes": 7, "joined_item": format!("join:{}", id(2)),
            "created_at": "2026-01-02T03:04:05Z", "ended_at": "2026-01-02T03:05:05Z", "a_field": "of a newer server"})
    }

    #[test]
    fn shows_a_branch_and_its_result() {
        let text = in_full(&read_as(&branch()).unwrap());
        for part in [
            "is finished\n",
            "tests (reviewer) on DEMO-1, 1 of its call",
            "knows (snapshot) 3 messages and 4 activities of \"The parser\", active\n",
            "asked:\n  Look at\n",
            "result:\n  It holds\nand 7 bytes",
            "its parent got it with join:",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        let shown = table(&[branch()]).unwrap();
        assert!(shown.contains("2026-01-02 03:05:05"), "{shown}");
        let mut cancelled = branch();
        cancelled["state"] = json!("cancelled");
        cancelled["detail"] = json!("by Ann: not needed");
        assert!(ended(&read_as(&cancelled).unwrap()).ends_with(" is cancelled, by Ann: not needed"));
    }

    #[test]
    fn a_cancellation_of_an_ended_branch_is_told() {
        let in_state = |state: &str| -> Branch {
            let mut branch = branch();
            branch["state"] = json!(state);
            read_as(&branch).unwrap()
        };
        let check = |before: &str, after: &str, reason: Option<&str>, expected: &str| {
            let reason = reason.map(Text::parse).transpose().unwrap();
            let said = what_followed(&in_state(before), &in_state(after), &Cancellation { reason });
            let expected = format!("branch 0190b5a8-0000-7000-8000-000000000001 is {expected}");
            assert_eq!(said, expected, "{before} {after}");
        };
        let not_recorded = "it had ended already, and the reason was not recorded";
        check("live", "cancelled", Some("no need"), "cancelled");
        check(
            "finished",
            "finished",
            Some("no need"),
            &format!("finished; {not_recorded}"),
        );
        check(
            "cancelled",
            "cancelled",
            Some("no need"),
            &format!("cancelled; {not_recorded}"),
        );
        // It ended between the two requests.
        check(
            "live",
            "finished",
            Some("no need"),
            &format!("finished; {not_recorded}"),
        );
        check(
            "failed",
            "failed",
            None,
            "failed; it had ended already, and nothing was cancelled",
        );
    }

    #[test]
    fn a_list_is_of_a_task() {
        let check = |line: &str, good: bool| {
            let line = format!("signalbox branches {line}").replace("ID", "0190b5a8-0000-7000-8000-000000000001");
            assert_eq!(Cli::try_parse_from(line.split_whitespace()).is_ok(), good, "{line}");
        };
        check("", false);
        check("DEMO-1", true);
        check("DEMO-1 --state live --account acme", true);
        check("DEMO-1 --state over", false);
        check("list DEMO-1", true);
        check("list", false);
        check("show ID", true);
        check("show DEMO-1", false);
        check("cancel ID --reason x", true);
        check("cancel DEMO-1", false);
    }
}
