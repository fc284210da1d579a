//! `signalbox release`: takes the lease of a session's turn from its holder, and says who carries the turn on.

use std::process::ExitCode;

use api::sessions::{Release, Session};
use serde_json::Value;

use crate::{cli::ReleaseArgs, client::read_as, print::show};

pub(crate) async fn run(args: &ReleaseArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let path = ["api", "orgs", &args.of.account, "sessions", &args.session];
    let before: Session = client.get(&path, &[]).await?;
    let session: Value = client.post(&[&path[..], &["release"]].concat(), &Release {}).await?;
    show(json, &session, |session| Ok(what_follows(&before, &read_as(session)?)))
}

fn what_follows(before: &Session, session: &Session) -> String {
    let id = session.id;
    match session.active_turn_id {
        Some(turn) if before.phase == "running" && session.phase != "running" => {
            format!("session {id} is released: any replica carries turn {turn} on")
        }
        _ => format!("no replica holds session {id}: nothing was released"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn says_whether_a_replica_held_it() {
        const ID: &str = "0190b5a8-0000-7000-8000-000000000001";
        let session = |phase: &str| -> Session {
            let session = json!({"id": ID, "kind": "task", "task": "DEMO-1", "agent": null, "generation": 2, "key": "k",
                "state": "active", "phase": phase, "opened_at": "2026-01-02T03:04:05Z", "closed_at": null,
                "close_reason": null, "queued": 3, "turns": 1, "active_turn_id": ID, "mismatch": null});
            read_as(&session).unwrap()
        };
        let released = what_follows(&session("running"), &session("backoff"));
        assert_eq!(
            released,
            format!("session {ID} is released: any replica carries turn {ID} on")
        );
        let nothing = what_follows(&session("waiting"), &session("waiting"));
        assert_eq!(nothing, format!("no replica holds session {ID}: nothing was released"));
    }
}
