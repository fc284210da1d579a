//! `signalbox pause`: sets a hold on a session, an agent, a task or the account, and says what it affects.

use std::process::ExitCode;

use api::{
    holds::{Affected, NewHold, Placed, Reason, Scope, ScopeId},
    text::Text,
};
use domain::{HoldRunning, HoldScope};
use serde_json::Value;

use super::{counted, resume};
use crate::{
    cli::{PauseArgs, ScopeArgs},
    client::read_as,
    print::show,
    text::one_line,
};

pub(crate) async fn run(args: &PauseArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let (kind, id) = scope(&args.scope, &args.of.account);
    let running = if args.stop {
        HoldRunning::Stop
    } else {
        HoldRunning::Finish
    };
    let hold = NewHold {
        scope: Scope {
            kind,
            id: ScopeId::parse(id).map_err(anyhow::Error::msg)?,
        },
        reason: text(args.reason.as_deref())?,
        until: args.until,
        running: Some(running),
        dry_run: Some(args.dry_run),
    };
    let placed: Value = client.post(&["api", "orgs", &args.of.account, "holds"], &hold).await?;
    show(json, &placed, |placed| Ok(what_follows(args, &read_as(placed)?)))
}

pub(super) fn text(reason: Option<&str>) -> anyhow::Result<Option<Reason>> {
    reason.map(Text::parse).transpose().map_err(anyhow::Error::msg)
}

/// The kind and the id of what was named.
pub(super) fn scope<'a>(scope: &'a ScopeArgs, account: &'a str) -> (HoldScope, &'a str) {
    match (&scope.session, &scope.task, &scope.agent) {
        (Some(session), _, _) => (HoldScope::Session, session),
        (_, Some(task), _) => (HoldScope::Task, task),
        (_, _, Some(agent)) => (HoldScope::Agent, agent),
        (None, None, None) => (HoldScope::Account, account),
    }
}

fn what_follows(args: &PauseArgs, placed: &Placed) -> String {
    let (kind, id) = scope(&args.scope, &args.of.account);
    let Affected {
        turns,
        items,
        sessions,
        at_least,
    } = placed.affected;
    let is_paused = match placed.id {
        Some(_) => "is paused",
        None => "would be paused",
    };
    let least = if at_least { "at least " } else { "" };
    let (waiting, turns_of) = (counted(items, "notification"), counted(turns, "turn"));
    let wait = match (items, sessions) {
        (1, 1) => format!("{waiting} waits in {sessions} session"),
        (_, 1) => format!("{waiting} wait in 1 session"),
        (1, _) => format!("{waiting} waits in {sessions} sessions"),
        _ => format!("{waiting} wait in {sessions} sessions"),
    };
    let running = match (turns, args.stop) {
        (0, _) => "no turn is in progress".to_owned(),
        (1, true) => format!("{turns_of} in progress is ended"),
        (1, false) => format!("{turns_of} in progress goes on to its end"),
        (_, true) => format!("{turns_of} in progress are ended"),
        (_, false) => format!("{turns_of} in progress go on to their end"),
    };
    let until = match (placed.id, args.until) {
        (None, _) => String::new(),
        (Some(_), None) => format!("; it lasts until `{}`", resume::command(&args.of.account, &args.scope)),
        (Some(_), Some(until)) => {
            let resume = resume::command(&args.of.account, &args.scope);
            format!("; it lasts until {} or `{resume}`", super::moment(Some(until)))
        }
    };
    format!(
        "{kind} {} {is_paused}: {least}{wait}; {running}{until}",
        one_line(id, 64)
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn says_what_is_paused_and_until_when() {
        const ID: &str = "0190b5a8-0000-7000-8000-000000000001";
        let check = |line: &str, affected: [i64; 3], expected: &str| {
            let line = format!("signalbox pause {line}");
            let Command::Pause(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!("{line}");
            };
            let [turns, items, sessions] = affected;
            let id = if args.dry_run { json!(null) } else { json!(ID) };
            let affected =
                json!({"turns": turns, "items": items, "sessions": sessions, "at_least": sessions == 10_000});
            let placed = read_as(&json!({"id": id, "affected": affected})).unwrap();
            assert_eq!(what_follows(&args, &placed), expected, "{line}");
        };
        check(
            ID,
            [0, 1, 1],
            &format!(
                "session {ID} is paused: 1 notification waits in 1 session; no turn is in progress; it lasts until \
                 `signalbox resume {ID}`"
            ),
        );
        check(
            "--task T --account acme",
            [1, 2, 2],
            "task T is paused: 2 notifications wait in 2 sessions; 1 turn in progress goes on to its end; it lasts until \
             `signalbox resume --task T --account acme`",
        );
        check(
            "--agent coder --stop --until 2026-01-31T18:00:00Z",
            [2, 0, 2],
            "agent coder is paused: 0 notifications wait in 2 sessions; 2 turns in progress are ended; it lasts until \
             2026-01-31 18:00:00 or `signalbox resume --agent coder`",
        );
        check(
            "--all --dry-run",
            [3, 20_000, 10_000],
            "account demo would be paused: at least 20000 notifications wait in 10000 sessions; 3 turns in progress go on to \
             their end",
        );
    }
}
