//! `signalbox turns`: turns in their order; or one turn in full, as the model saw it.

use std::process::ExitCode;

use api::{sessions::Session, turns::Turn};
use serde_json::Value;

use super::{filters, moment};
use crate::{
    cli::TurnsArgs,
    client::{Client, read_as},
    print::show,
    table::Table,
    text::{lines, one_line},
};

const VALUE_CHARS_MAX: usize = 200;

pub(crate) async fn run(args: &TurnsArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.list.of.access.client()?;
    if let Some(id) = &args.id {
        let turn: Value = client
            .get(&["api", "orgs", &args.list.of.account, "turns", &id.to_string()], &[])
            .await?;
        return show(json, &turn, |turn| Ok(full(&read_as(turn)?)));
    }
    let turns = turns(&client, args).await?;
    show(json, &turns, |turns| table(turns))
}

/// The turns of one session, or of every session that matches, one session after the other.
async fn turns(client: &Client, args: &TurnsArgs) -> anyhow::Result<Vec<Value>> {
    let (account, limit) = (args.list.of.account.as_str(), usize::from(args.list.limit));
    let sessions = match &args.session {
        Some(session) => vec![session.clone()],
        None => {
            let query = filters([("task", args.task.as_deref()), ("agent", args.agent.as_deref())]);
            let found = client
                .list(&["api", "orgs", account, "sessions"], &query, limit)
                .await?;
            let ids = found
                .iter()
                .map(|session| Ok(read_as::<Session>(session)?.id.to_string()));
            ids.collect::<anyhow::Result<_>>()?
        }
    };
    let mut turns = Vec::new();
    for session in sessions {
        let path = ["api", "orgs", account, "sessions", &session, "turns"];
        turns.extend(client.list(&path, &[], limit - turns.len()).await?);
        if turns.len() >= limit {
            break;
        }
    }
    Ok(turns)
}

fn table(turns: &[Value]) -> anyhow::Result<String> {
    let mut table = Table::new(&[
        "TURN",
        "GENERATION",
        "NUMBER",
        "STATE",
        "NOTIFICATIONS",
        "STARTED",
        "REPLY",
    ]);
    for turn in turns {
        let turn: Turn = read_as(turn)?;
        table.row([
            &turn.id.to_string(),
            &format!("v{}", turn.generation),
            &turn.number.to_string(),
            &turn.state,
            &turn.notifications.join(" "),
            &moment(Some(turn.started_at)),
            &one_line(said(&turn), 60),
        ]);
    }
    Ok(table.render("no turns"))
}

/// The outcome in words.
pub(crate) fn said(turn: &Turn) -> &str {
    let reply = turn.reply.as_deref().filter(|reply| !reply.is_empty());
    reply.or(turn.error.as_deref()).unwrap_or_default()
}

fn full(turn: &Turn) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        if !value.is_empty() {
            text += &format!("{name:<14}{}\n", one_line(value, VALUE_CHARS_MAX));
        }
    };
    field("turn", &turn.id.to_string());
    field("session", &turn.session_id.to_string());
    field("generation", &format!("v{}, turn {}", turn.generation, turn.number));
    field("state", &turn.state);
    field("notifications", &turn.notifications.join(" "));
    field("started", &moment(Some(turn.started_at)));
    field("finished", &moment(turn.finished_at));
    if let Some(context) = &turn.context {
        let reason = context.reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        let lost = context
            .lost_after
            .map_or_else(String::new, |rounds| format!(", lost after {rounds} rounds"));
        field(
            "context",
            &format!("{}{reason}, thread {}{lost}", context.used, context.thread),
        );
    }
    field("rotated", turn.rotated_because.as_deref().unwrap_or_default());
    field("profile", &format!("{} {}", turn.profile.version, turn.profile.hash));
    for call in &turn.tool_calls {
        let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let called = format!(
            "{} {} → {} {}",
            call.name,
            plain(&call.arguments),
            call.state,
            call.result.as_ref().map(plain).unwrap_or_default()
        );
        field("tool", &called);
    }
    let mut part = |name: &str, value: Option<&str>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            text += &format!("\n── {name}\n{}\n", lines(value).trim_end());
        }
    };
    part("instructions", turn.instructions.as_deref());
    part("input", Some(&turn.input));
    for note in &turn.notes {
        part("given later", Some(&note.text));
    }
    part("reply", Some(said(turn)));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "0190b5a8-0000-7000-8000-000000000001";

    fn turn() -> Value {
        json!({"id": ID, "session_id": ID, "generation": 2, "number": 3, "state": "finished",
            "notifications": ["n-1", "n-2"], "profile": {"version": "1", "hash": "ab"}, "instructions": "Be kind.",
            "input": "Notification: n-1\nBody", "reply": "Done.\nReally.", "tool_calls": [{"call_id": "c", "name":
            "task_status", "arguments": {"status": "done"}, "state": "finished", "result": "{}"}], "usage": null,
            "error": null, "provider": "default", "provider_calls": 1, "task_history_called": false, "no_reply": false,
            "late": false, "started_at": "2026-01-02T03:04:05Z", "finished_at": null, "manifest": {}})
    }

    #[test]
    fn lists_a_turn_in_a_line() {
        let listed = table(&[turn()]).unwrap();
        assert_eq!(
            listed.lines().last().unwrap(),
            format!("{ID}  v2          3       finished  n-1 n-2        2026-01-02 03:04:05  Done. Really.")
        );
    }

    #[test]
    fn shows_a_turn_as_the_model_saw_it() {
        let shown = full(&read_as(&turn()).unwrap());
        assert_eq!(
            shown,
            format!(
                "turn          {ID}\nsession       {ID}\ngeneration    v2, turn 3\nstate         finished\n\
                 notifications n-1 n-2\nstarted       2026-01-02 03:04:05\nprofile       1 ab\n\
                 tool          task_status {{\"status\":\"done\"}} → finished {{}}\n\n── instructions\nBe kind.\n\n── input\n\
                 Notification: n-1\nBody\n\n── reply\nDone.\nReally.\n"
            )
        );
    }

    #[test]
    fn says_where_its_context_came_from() {
        let mut lost = turn();
        lost["context"] =
            json!({"asked": "continue", "used": "continue", "reason": "thread_lost", "thread": 2, "lost_after": 1});
        lost["rotated_because"] = "failures_max: 3 in a row".into();
        let shown = full(&read_as(&lost).unwrap());
        let context = "context       continue (thread_lost), thread 2, lost after 1 rounds\nrotated       failures_max: 3 in a row\n";
        assert!(shown.contains(context), "{shown}");
    }

    #[test]
    fn says_the_error_where_there_is_no_reply() {
        let mut failed = turn();
        failed["reply"] = Value::Null;
        failed["error"] = "provider away".into();
        assert_eq!(said(&read_as(&failed).unwrap()), "provider away");
    }
}
