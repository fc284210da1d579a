//! `signalbox sessions`: which generations there are, and which of them have work waiting.

use std::process::ExitCode;

use serde_json::Value;

use super::moment;
use crate::{
    cli::SessionsArgs,
    client::shapes::{Session, shape},
    print::{print, print_json},
    table::Table,
    text::one_line,
};

pub(crate) async fn run(args: &SessionsArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.list.access.client()?;
    let account = args.list.account.as_str();
    if let Some(id) = &args.id {
        let session: Value = client.get(&["api", "orgs", account, "sessions", id], &[]).await?;
        if json {
            print_json(&session)?;
        } else {
            print(&table(&[session])?)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let query = query(args.task.as_deref(), args.agent.as_deref(), args.active);
    let path = ["api", "orgs", account, "sessions"];
    let sessions = client.list(&path, &query, args.list.limit.into()).await?;
    if json {
        print_json(&sessions)?;
    } else {
        print(&table(&sessions)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the list is filtered by.
pub(super) fn query<'a>(task: Option<&'a str>, agent: Option<&'a str>, active: bool) -> Vec<(&'a str, &'a str)> {
    let named = [("task", task), ("agent", agent), ("active", active.then_some("true"))];
    named
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
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
        let session: Session = shape(session)?;
        let state = match session.close_reason.as_deref() {
            Some(reason) => format!("{} ({})", session.state, one_line(reason, 30)),
            None => session.state,
        };
        table.row([
            &session.id,
            &session.kind,
            session.task.as_deref().unwrap_or_default(),
            session.agent.as_ref().map(|agent| agent.name()).unwrap_or_default(),
            &format!("v{}", session.generation),
            &state,
            &session.queued.to_string(),
            &moment(session.opened_at.as_deref()),
        ]);
    }
    Ok(table.render("no sessions"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_what_a_session_is_and_why_it_ended() {
        let open = json!({"id": "s-1", "kind": "task", "task": "DEMO-1", "agent": {"id": "a-1", "slug": "coder"},
            "generation": 2, "key": "k", "state": "active", "opened_at": "2026-01-02T03:04:05.678Z", "closed_at": null,
            "close_reason": null, "queued": 3});
        let closed = json!({"id": "s-2", "kind": "system", "task": null, "agent": {"id": "a-1"}, "generation": 1,
            "state": "closed", "close_reason": "agent_removed", "queued": 0});
        assert_eq!(
            table(&[open, closed]).unwrap(),
            "SESSION  KIND    TASK    AGENT  GENERATION  STATE                   QUEUED  OPENED\n\
             s-1      task    DEMO-1  coder  v2          active                  3       2026-01-02 03:04:05\n\
             s-2      system  -       a-1    v1          closed (agent_removed)  0       -\n"
        );
    }

    #[test]
    fn filters_only_by_what_was_named() {
        assert_eq!(query(None, None, false), []);
        assert_eq!(query(Some("T"), None, true), [("task", "T"), ("active", "true")]);
    }
}
