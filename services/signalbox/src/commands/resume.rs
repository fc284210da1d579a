//! `signalbox resume`: resumes a session whose turn was stopped, and says what it does next.

use std::process::ExitCode;

use api::sessions::{Resume, Session, SessionState};
use serde_json::Value;

use super::notifications_of;
use crate::{cli::ResumeArgs, client::read_as, print::show, text::one_line};

/// The account that commands assume.
const ACCOUNT: &str = "demo";

pub(crate) async fn run(args: &ResumeArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.access.client()?;
    let path = ["api", "orgs", &args.account, "sessions", &args.session, "resume"];
    let session: Value = client.post(&path, &Resume {}).await?;
    show(json, &session, |session| Ok(what_follows(&read_as(session)?)))
}

/// The command line that resumes a session.
pub(super) fn command(account: &str, session: &str) -> String {
    let session = one_line(session, 64);
    match account {
        ACCOUNT => format!("signalbox resume {session}"),
        account => format!("signalbox resume {session} --account {}", one_line(account, 64)),
    }
}

fn what_follows(session: &Session) -> String {
    let (id, waiting) = (session.id, notifications_of(session.queued));
    if session.state == SessionState::Closed {
        return format!("session {id} is closed: nothing was resumed");
    }
    match &session.gate {
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
    use serde_json::json;

    use super::*;

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
        check(json!({"state": "closed"}), "is closed: nothing was resumed");
    }

    #[test]
    fn the_command_names_the_account_where_it_is_needed() {
        assert_eq!(command("demo", "S"), "signalbox resume S");
        assert_eq!(command("acme", "S"), "signalbox resume S --account acme");
    }
}
