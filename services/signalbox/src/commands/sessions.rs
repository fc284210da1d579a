//! `signalbox sessions`: the generations of sessions, and their queues.

use std::{process::ExitCode, slice::from_ref};

use api::sessions::Session;
use serde_json::Value;

use super::{filters, moment};
use crate::{cli::SessionsArgs, client::read_as, print::show, table::Table, text::one_line};

pub(crate) async fn run(args: &SessionsArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.list.of.access.client()?;
    let account = args.list.of.account.as_str();
    if let Some(id) = &args.id {
        let session: Value = client.get(&["api", "orgs", account, "sessions", id], &[]).await?;
        return show(json, &session, |session| {
            Ok(table(from_ref(session))? + &more(&read_as(session)?))
        });
    }
    let active = args.active.then_some("true");
    let query = filters([
        ("task", args.task.as_deref()),
        ("agent", args.agent.as_deref()),
        ("active", active),
    ]);
    let path = ["api", "orgs", account, "sessions"];
    let sessions = client.list(&path, &query, args.list.limit.into()).await?;
    show(json, &sessions, |sessions| table(sessions))
}

fn table(sessions: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&[
        "SESSION",
        "KIND",
        "TASK",
        "AGENT",
        "GENERATION",
        "STATE",
        "QUEUED",
        "OPENED",
    ]);
    for session in sessions {
        let session: Session = read_as(session)?;
        let resetting = session.reset_request.as_ref().map(|_| "resetting");
        let stopping = session.stopping.then_some("stopping");
        let why = session.close_reason.as_deref().or(resetting).or(stopping);
        let why = why.or(session.gate.as_deref());
        let state = session.state.as_str();
        let state = match why {
            Some(why) => format!("{state} ({})", one_line(why, 30)),
            None => state.to_owned(),
        };
        table.row([
            &session.id.to_string(),
            &session.kind,
            session.task.as_deref().unwrap_or_default(),
            agent(&session),
            &format!("v{}", session.generation),
            &state,
            &session.queued.to_string(),
            &moment(Some(session.opened_at)),
        ]);
    }
    Ok(table.render("no sessions"))
}

/// All orchestrators of an account are one agent: whose one it is tells them apart.
fn agent(session: &Session) -> &str {
    let owner = session.owner.as_deref();
    let owner = owner.filter(|_| ["orchestrator", "guest"].contains(&&*session.kind));
    owner.unwrap_or_else(|| session.agent.as_ref().map_or("", |agent| &agent.slug))
}

/// What a list does not show.
fn more(session: &Session) -> String {
    let live = if session.thread.live { ", live" } else { "" };
    let mut lines = vec![format!(
        "thread {}{live}; {} tokens used in {} turns",
        session.thread.number, session.tokens_used, session.turns
    )];
    lines.extend(
        session
            .continues_id
            .map(|before| format!("continues {before}, which was rotated")),
    );
    let reset = session.reset_request.as_ref();
    lines.extend(reset.map(|reset| format!("is reset when its turn has ended, {}", one_line(&reset.detail(), 200))));
    lines.extend(
        session
            .close_detail
            .as_ref()
            .map(|detail| format!("closed: {}", one_line(detail, 200))),
    );
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_what_a_session_is_and_why_it_ended() {
        let id = |n: u8| format!("0190b5a8-0000-7000-8000-{n:012}");
        let open = json!({"id": id(1), "kind": "task", "task": "DEMO-1", "agent": {"id": id(3), "slug": "coder"},
            "generation": 2, "key": "k", "state": "active", "phase": "idle", "opened_at": "2026-01-02T03:04:05.678Z",
            "closed_at": null, "close_reason": null, "queued": 3, "turns": 1, "active_turn_id": null, "mismatch": null});
        let closed = json!({"id": id(2), "kind": "system", "task": null, "agent": {"id": id(3), "slug": "coder"},
            "generation": 1, "key": "k", "state": "closed", "phase": "idle", "opened_at": "2026-01-02T03:04:05Z",
            "closed_at": "2026-01-02T03:04:06Z", "close_reason": "agent_removed", "queued": 0, "turns": 1,
            "active_turn_id": null, "mismatch": null, "a_field": "of a newer server"});
        let check = |name: &str, value: Value, state: &str| {
            let mut session = open.clone();
            session[name] = value;
            let listed = table(&[session]).unwrap();
            assert!(listed.contains(&format!("  {state}  3  ")), "{listed}");
        };
        check("gate", json!("stopped"), "active (stopped)");
        check("gate", json!("of a newer server"), "active (of a newer server)");
        check("stopping", json!(true), "active (stopping)");
        let by = json!({"kind": "user", "id": "u-1", "name": "Ann"});
        let reset = json!({"reason": "it is stuck", "by": by, "queue": "keep", "in_flight": "cancel", "at": "2026-01-02T03:04:05Z"});
        check("reset_request", reset.clone(), "active (resetting)");
        let mut theirs = open.clone();
        (theirs["kind"], theirs["owner"]) = (json!("orchestrator"), json!("user:ann"));
        assert!(table(&[theirs]).unwrap().contains("  user:ann  v2  "));
        let mut one = open.clone();
        one["thread"] = json!({"number": 2, "live": true});
        one["tokens_used"] = json!(1_234);
        one["continues_id"] = json!(id(4));
        one["reset_request"] = reset;
        one["close_detail"] = json!("tokens_max: 7");
        assert_eq!(
            more(&read_as(&one).unwrap()),
            format!(
                "thread 2, live; 1234 tokens used in 1 turns\n\
                 continues {}, which was rotated\n\
                 is reset when its turn has ended, by Ann: it is stuck\n\
                 closed: tokens_max: 7\n",
                id(4)
            )
        );
        assert_eq!(
            table(&[open, closed]).unwrap(),
            "SESSION                               KIND    TASK    AGENT  GENERATION  STATE                   QUEUED  OPENED\n\
             0190b5a8-0000-7000-8000-000000000001  task    DEMO-1  coder  v2          active                  3       2026-01-02 03:04:05\n\
             0190b5a8-0000-7000-8000-000000000002  system  -       coder  v1          closed (agent_removed)  0       2026-01-02 03:04:05\n"
        );
    }
}
