//! A row of the table of `up`: one notification and its outcome.

use api::{notifications::Notification, turns::Turn};
use domain::{NotificationState, SessionKey, SessionOf};
use serde::Serialize;

use crate::{commands::turns::said, table::Columns, text::one_line};

const COLUMNS: Columns = Columns::new(&[
    ("NOTIFICATION", ID_CHARS_MAX),
    ("TASK", TASK_CHARS_MAX),
    ("AGENT", 12),
    ("STATE", 9),
    ("SESSION", 12),
    ("TURN", 4),
    ("REPLY OR REASON", TEXT_CHARS_MAX),
]);
const ID_CHARS_MAX: usize = 22;
const TASK_CHARS_MAX: usize = 10;
const TEXT_CHARS_MAX: usize = 80;
/// The end of a session's id. Its beginning is a timestamp, which concurrent sessions share.
const SESSION_CHARS: usize = 6;

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Row {
    pub(super) account: String,
    pub(super) notification: String,
    pub(super) task: Option<String>,
    pub(super) agent: Option<String>,
    pub(super) state: String,
    pub(super) session_id: Option<String>,
    pub(super) session_key: Option<String>,
    pub(super) turn: Option<i64>,
    pub(super) tools: Vec<String>,
    pub(super) reply: Option<String>,
    pub(super) reason: Option<String>,
    /// The outcome is from an earlier run: the same id was published again and had no effect.
    pub(super) is_again: bool,
}

impl Row {
    pub(super) fn new(account: &str, notification: &Notification, turn: Option<&Turn>) -> Row {
        Row {
            account: account.to_owned(),
            notification: notification.id.clone(),
            task: notification.task.clone(),
            agent: notification.agent.clone(),
            state: notification.state.clone(),
            session_id: notification.session_id.map(|id| id.to_string()),
            session_key: notification.session_key.clone(),
            turn: turn.map(|turn| turn.number),
            tools: turn.map_or_else(Vec::new, |turn| {
                turn.tool_calls.iter().map(|call| call.name.clone()).collect()
            }),
            reply: turn.map(said).filter(|said| !said.is_empty()).map(str::to_owned),
            reason: notification.reason.clone().filter(|reason| !reason.is_empty()),
            is_again: false,
        }
    }

    pub(super) fn state(&self) -> Option<NotificationState> {
        NotificationState::parse(&self.state)
    }

    pub(super) fn head() -> String {
        COLUMNS.head()
    }

    pub(super) fn text(&self) -> String {
        COLUMNS.row([
            &middle_cut(&self.notification, ID_CHARS_MAX),
            &self
                .task
                .as_deref()
                .map_or_else(String::new, |task| middle_cut(task, TASK_CHARS_MAX)),
            self.agent(),
            &self.state,
            &self.session(),
            &self.turn.map(|turn| turn.to_string()).unwrap_or_default(),
            &self.said(),
        ])
    }

    /// The agent of orchestrators has an id for a slug.
    fn agent(&self) -> &str {
        match self.key().map(|key| key.of) {
            Some(SessionOf::Orchestrator(_) | SessionOf::Guest { .. }) => "orchestrator",
            _ => self.agent.as_deref().unwrap_or_default(),
        }
    }

    fn key(&self) -> Option<SessionKey> {
        SessionKey::parse(self.session_key.as_deref()?).ok()
    }

    /// `…a1b2c3 v2`
    fn session(&self) -> String {
        let Some(id) = &self.session_id else {
            return String::new();
        };
        let from = id.char_indices().rev().nth(SESSION_CHARS - 1).map_or(0, |(at, _)| at);
        match self.key().map(|key| key.generation) {
            Some(generation) => format!("…{} v{generation}", &id[from..]),
            None => format!("…{}", &id[from..]),
        }
    }

    fn said(&self) -> String {
        let mut parts = Vec::new();
        if self.is_again {
            parts.push("(known already)".to_owned());
        }
        if !self.tools.is_empty() {
            parts.push(format!("[{}]", self.tools.join(", ")));
        }
        // For a failed notification the reason is more useful than the reply.
        let is_delivered = self.state() == Some(NotificationState::Delivered);
        let said = if is_delivered {
            [&self.reply, &self.reason]
        } else {
            [&self.reason, &self.reply]
        };
        parts.extend(said.into_iter().flatten().next().cloned());
        one_line(&parts.join(" "), TEXT_CHARS_MAX)
    }
}

/// Ids differ at their ends: generated ids begin with a timestamp, those of a fan-out with a shared id.
fn middle_cut(id: &str, chars_max: usize) -> String {
    let chars: Vec<char> = id.chars().collect();
    if chars.len() <= chars_max {
        return id.to_owned();
    }
    let tail = chars_max / 2;
    let head = chars_max - tail - 1;
    let part = |chars: &[char]| chars.iter().collect::<String>();
    format!("{}…{}", part(&chars[..head]), part(&chars[chars.len() - tail..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::read_as;

    fn notification(state: &str) -> Notification {
        read_as(
            &json!({"id": "demo-01", "task": "DEMO-1", "agent": "coder", "agent_id": null, "type": "message",
            "state": state, "session_id": "0190b5a8-1111-7000-8000-0000008c2f1a",
            "session_key": "task:demo-1:agent:0190b5a8-0000-7000-8000-000000000001:demo:v2",
            "turn_id": "0190b5a8-2222-7000-8000-000000000001", "attempts": 1, "hops": 0,
            "reason": (state != "delivered").then_some("provider away"), "created_at": "2026-01-02T03:04:05Z"}),
        )
        .unwrap()
    }

    fn turn() -> Turn {
        let tool =
            json!({"call_id": "c", "name": "task_history", "arguments": {}, "state": "finished", "result": "{}"});
        let id = "0190b5a8-2222-7000-8000-000000000001";
        read_as(
            &json!({"id": id, "session_id": id, "generation": 2, "number": 3, "state": "finished",
            "notifications": ["demo-01"], "profile": {"version": "1", "hash": "ab"}, "input": "Body",
            "reply": "On DEMO-1:\n\u{1b}[31mdone.", "tool_calls": [tool], "provider": "default", "provider_calls": 1,
            "task_history_called": true, "no_reply": false, "late": false, "started_at": "2026-01-02T03:04:05Z",
            "finished_at": null, "manifest": {}}),
        )
        .unwrap()
    }

    #[test]
    fn a_row_is_one_harmless_line_under_its_head() {
        let mut row = Row::new("demo", &notification("delivered"), Some(&turn()));
        let head = "NOTIFICATION            TASK        AGENT         STATE      SESSION       TURN  REPLY OR REASON";
        assert_eq!(Row::head(), head);
        let line = "demo-01                 DEMO-1      coder         delivered  …8c2f1a v2    3     [task_history] On DEMO-1: [31mdone.";
        assert_eq!(row.text(), line);
        row.is_again = true;
        assert!(
            row.text()
                .ends_with("3     (known already) [task_history] On DEMO-1: [31mdone.")
        );
    }

    #[test]
    fn a_long_id_keeps_both_ends() {
        assert_eq!(middle_cut("demo-01", 22), "demo-01");
        let part = "demo-07:0190b5a8-0000-7000-8000-000000000001";
        assert_eq!(middle_cut(part, 22), "demo-07:01…00000000001");
    }

    #[test]
    fn what_was_not_delivered_says_why() {
        let row = Row::new("demo", &notification("failed"), Some(&turn()));
        assert!(row.text().ends_with("[task_history] provider away"), "{}", row.text());
        let refused: Notification = read_as(
            &json!({"id": "n", "type": "message", "state": "refused", "attempts": 0, "hops": 0,
            "reason": "unknown_agent", "created_at": "2026-01-02T03:04:05Z"}),
        )
        .unwrap();
        let row = Row::new("demo", &refused, None);
        assert_eq!(
            row.text(),
            "n                       -           -             refused    -             -     unknown_agent"
        );
    }
}
