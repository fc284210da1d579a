//! `signalbox resume`: releases the holds on a session, an agent, a task or the account; resumes a session whose turn was stopped,
//! and says what it does next.

use std::process::ExitCode;

use api::{
    agents::Agent,
    holds::Hold,
    sessions::{Resume, Session, SessionState},
};
use domain::HoldScope;
use serde_json::{Value, json};

use super::{notifications_of, pause::scope};
use crate::{
    cli::{ResumeArgs, ScopeArgs},
    client::{Client, read_as},
    print::show,
    text::one_line,
};

/// The account that commands assume.
const ACCOUNT: &str = "demo";
/// Active holds that an account may have.
const HOLDS_MAX: usize = 100;

pub(crate) async fn run(args: &ResumeArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let released = release(&client, args).await?;
    let session: Option<Value> = match &args.scope.session {
        Some(session) => {
            let path = ["api", "orgs", &args.of.account, "sessions", session, "resume"];
            Some(client.post(&path, &Resume {}).await?)
        }
        None => None,
    };
    let done = json!({"released": released, "session": session});
    show(json, &done, |_| {
        let session = session.as_ref().map(read_as::<Session>).transpose()?;
        let holds = released.iter().map(read_as).collect::<anyhow::Result<Vec<Hold>>>()?;
        Ok(lines(args, &holds, session.as_ref()).join("\n"))
    })
}

/// Releases the active holds on the scope.
async fn release(client: &Client, args: &ResumeArgs) -> anyhow::Result<Vec<Value>> {
    let (kind, named) = scope(&args.scope, &args.of.account);
    let id = match kind {
        HoldScope::Agent => {
            let agent: Agent = client
                .get(&["api", "orgs", &args.of.account, "agents", named], &[])
                .await?;
            agent.id.to_string()
        }
        HoldScope::Account | HoldScope::Task | HoldScope::Session => named.to_ascii_lowercase(),
    };
    let path = ["api", "orgs", &args.of.account, "holds"];
    let query = [("active", "true"), ("scope", kind.as_str()), ("scope_id", id.as_str())];
    let mut released = Vec::new();
    for hold in client.list(&path, &query, HOLDS_MAX).await? {
        let id = read_as::<Hold>(&hold)?.id.to_string();
        released.push(client.delete(&["api", "orgs", &args.of.account, "holds", &id]).await?);
    }
    Ok(released)
}

fn lines(args: &ResumeArgs, released: &[Hold], session: Option<&Session>) -> Vec<String> {
    let (kind, named) = scope(&args.scope, &args.of.account);
    let named = one_line(named, 64);
    let of_hold = |hold: &Hold| format!("released the hold of {} on {kind} {named}", one_line(&hold.by.name, 64));
    let mut lines: Vec<String> = released.iter().map(of_hold).collect();
    match session {
        Some(session) => lines.push(what_follows(session)),
        None if lines.is_empty() => lines.push(format!("{kind} {named} has no hold: nothing was released")),
        None => {}
    }
    lines
}

/// The command line that resumes this.
pub(super) fn command(account: &str, of: &ScopeArgs) -> String {
    let (kind, named) = scope(of, account);
    let named = one_line(named, 64);
    let what = match kind {
        HoldScope::Session => named,
        HoldScope::Task => format!("--task {named}"),
        HoldScope::Agent => format!("--agent {named}"),
        HoldScope::Account => "--all".to_owned(),
    };
    match account {
        ACCOUNT => format!("signalbox resume {what}"),
        account => format!("signalbox resume {what} --account {}", one_line(account, 64)),
    }
}

fn what_follows(session: &Session) -> String {
    let (id, waiting) = (session.id, notifications_of(session.queued));
    if session.state == SessionState::Closed {
        return format!("session {id} is closed: nothing was resumed");
    }
    match &session.gate {
        Some(gate) if gate == "pause" => {
            format!("session {id} stays paused with {waiting}: `signalbox holds` says by whom and how it ends")
        }
        Some(gate) => format!("session {id} stays parked ({}) with {waiting}", one_line(gate, 30)),
        None if session.queued == 0 => format!("session {id} has no notification waiting"),
        None if session.active_turn_id.is_some() => {
            format!("session {id} has a turn in progress; {waiting} will follow")
        }
        None => format!("session {id} continues with {waiting}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn says_what_the_session_does_next() {
        const ID: &str = "0190b5a8-0000-7000-8000-000000000001";
        let check = |changed: Value, expected: &str| {
            let mut session = json!({"id": ID, "kind": "task", "task": "DEMO-1", "agent": null, "generation": 2, "key": "k",
                "state": "active", "phase": "backoff", "opened_at": "2026-01-02T03:04:05Z", "closed_at": null,
                "close_reason": null, "queued": 3, "turns": 1, "active_turn_id": null, "mismatch": null});
            for (name, value) in changed.as_object().unwrap() {
                session[name] = value.clone();
            }
            let said = what_follows(&read_as(&session).unwrap());
            assert_eq!(said, format!("session {ID} {expected}"), "{changed}");
        };
        check(json!({}), "continues with 3 notifications");
        check(json!({"queued": 1}), "continues with 1 notification");
        check(json!({"queued": 0}), "has no notification waiting");
        check(
            json!({"active_turn_id": ID}),
            "has a turn in progress; 3 notifications will follow",
        );
        check(
            json!({"gate": "collect"}),
            "stays parked (collect) with 3 notifications",
        );
        check(
            json!({"gate": "pause"}),
            "stays paused with 3 notifications: `signalbox holds` says by whom and how it ends",
        );
        check(json!({"state": "closed"}), "is closed: nothing was resumed");
    }

    #[test]
    fn says_which_holds_were_released() {
        let check = |line: &str, holds: usize, expected: &[&str]| {
            let line = format!("signalbox resume {line}");
            let Command::Resume(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!("{line}");
            };
            let hold = json!({"id": "0190b5a8-0000-7000-8000-000000000001", "scope": {"kind": "task", "id": "t"}, "reason": "",
                "by": {"kind": "user", "id": "k", "name": "Ann"}, "running": "finish", "until": null,
                "created_at": "2026-01-02T03:04:05Z", "active": false, "released_at": null, "released_by": null});
            let holds: Vec<Hold> = (0..holds).map(|_| read_as(&hold).unwrap()).collect();
            assert_eq!(lines(&args, &holds, None), expected, "{line}");
        };
        check("--task T", 1, &["released the hold of Ann on task T"]);
        check("--all", 0, &["account demo has no hold: nothing was released"]);
    }

    #[test]
    fn the_command_names_the_account_where_it_is_needed() {
        let check = |account: &str, line: &str| {
            let line = format!("signalbox {line}");
            let Command::Resume(args) = Cli::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!("{line}");
            };
            assert_eq!(command(account, &args.scope), line);
        };
        check("demo", "resume 0190b5a8-0000-7000-8000-000000000001");
        check("acme", "resume 0190b5a8-0000-7000-8000-000000000001 --account acme");
        check("demo", "resume --agent coder");
        check("acme", "resume --all --account acme");
    }
}
