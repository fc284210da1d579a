//! A session's log: what its agent got and did, in segments, as data and as text.

use std::fmt::Write as _;

use contracts::quote;
use domain::{BranchState, Timestamp, TurnContext, TurnState};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::turns::ToolCall;

/// A page of a session's log: the turns of all of its generations that are kept, or of one of them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Log {
    pub segments: Vec<Segment>,
    /// Ask again with `cursor` set to this; null on the last page. The first segment of a page may go on with the last one of the
    /// page before.
    pub next_cursor: Option<String>,
}

/// Turns in one thread of a provider, in one generation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Segment {
    pub session_id: Uuid,
    pub generation: i32,
    /// The number of the thread in its generation. Null: no turn of it is known, or a version before this one ran its turns.
    pub thread: Option<i32>,
    /// What it begins with. Null: it goes on with the segment before.
    pub boundary: Option<Boundary>,
    pub turns: Vec<LogTurn>,
}

/// Where the agent's memory begins anew.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Boundary {
    /// `opened`; of a later generation, why the one before was closed; of a later thread, the reason of its first turn's context.
    pub reason: String,
    pub detail: Option<String>,
    /// Who asked for it, if it is a reset.
    pub by: Option<String>,
    pub at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LogTurn {
    pub id: Uuid,
    /// Position in its session, from 1.
    pub number: i64,
    #[schemars(with = "TurnState")]
    pub state: String,
    pub provider: String,
    /// Where its context came from. Null: a version before this one ran it.
    pub context: Option<TurnContext>,
    pub started_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// What the model got, in its order.
    pub parts: Vec<LogPart>,
    pub calls: Vec<ToolCall>,
    /// Further calls: `/turns/{turn}/tool-calls` has every one.
    pub calls_left_out: usize,
    /// The parts of its work that it gave to subagents.
    #[serde(default)]
    pub branches: Vec<LogBranch>,
    pub reply: Option<String>,
    pub error: Option<String>,
    pub error_class: Option<String>,
    pub no_reply: bool,
    pub late: bool,
    pub usage: Option<Value>,
}

/// A branch, under the turn that spawned it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct LogBranch {
    pub id: Uuid,
    pub label: Option<String>,
    /// The subagent's slug.
    pub agent: String,
    #[schemars(with = "BranchState")]
    pub state: String,
    /// Its own session, which has a log.
    pub session_id: Uuid,
    /// The item of its parent that brings the result. Null: there is none yet.
    pub joined_item: Option<String>,
}

/// A part of a prompt with its text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LogPart {
    /// `instructions`, `context`, `input` or `notes`.
    pub layer: String,
    pub part: String,
    pub source: String,
    pub because: String,
    pub bytes: usize,
    /// Bytes by four.
    pub tokens_estimate: usize,
    pub cut_bytes: usize,
    pub cut_by: Option<String>,
    /// The prompt of the turn before in the session had the same text from the same source.
    pub same_as_previous: bool,
    /// Null: its source is no longer kept, or does not give the text that was sent.
    pub text: Option<String>,
}

/// Texts longer than this are folded in the log's text.
pub const FOLDED_BYTES: usize = 2_048;

impl Log {
    /// The page as text for people. Whatever the record holds, a field stays on its line, and no character is invisible.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for segment in &self.segments {
            segment.write(&mut text);
        }
        if let Some(cursor) = &self.next_cursor {
            line(&mut text, "", &format!("More: cursor={cursor}"));
        }
        text
    }
}

impl Segment {
    fn write(&self, text: &mut String) {
        let thread = self.thread.map_or(String::new(), |thread| format!(", thread {thread}"));
        let head = format!("== generation {}{thread}  session {}", self.generation, self.session_id);
        line(text, "", &head);
        if let Some(Boundary { reason, detail, by, at }) = &self.boundary {
            let detail = detail.as_ref().map_or(String::new(), |detail| format!(": {detail}"));
            let by = by.as_ref().map_or(String::new(), |by| format!(" by {by}"));
            line(text, "   ", &format!("{reason}{by} at {at}{detail}"));
        }
        for turn in &self.turns {
            turn.write(text);
        }
    }
}

impl LogTurn {
    fn write(&self, text: &mut String) {
        text.push('\n');
        let late = if self.late { ", late" } else { "" };
        let head = format!(
            "-- turn {}  {}{late}  {}  {}",
            self.number, self.state, self.started_at, self.id
        );
        line(text, "", &head);
        if let Some(context) = &self.context {
            let reason = context.reason.map_or(String::new(), |reason| format!(" ({reason})"));
            line(text, "   ", &format!("context {}{reason}", context.used));
        }
        for part in &self.parts {
            let cut = match &part.cut_by {
                Some(limit) => format!(", {} bytes cut by {limit}", part.cut_bytes),
                None => String::new(),
            };
            let head = format!(
                "{}/{} from {}: {} bytes{cut}",
                part.layer, part.part, part.source, part.bytes
            );
            let (mark, slice) = match (&part.text, part.same_as_previous) {
                (None, _) => (" [not kept]", None),
                (Some(_), true) => (" [as in the turn before]", None),
                (Some(slice), false) => ("", Some(slice)),
            };
            line(text, "   ", &format!("{head}{mark}"));
            if let Some(slice) = slice {
                block(text, slice);
            }
        }
        for call in &self.calls {
            line(
                text,
                "   ",
                &format!("call {} {} {}", call.call_id, call.name, call.state),
            );
            block(text, &plain(&call.arguments));
            if let Some(result) = &call.result {
                block(text, &plain(result));
            }
        }
        if self.calls_left_out > 0 {
            line(text, "   ", &format!("[{} more calls]", self.calls_left_out));
        }
        for branch in &self.branches {
            let label = branch.label.as_ref().map_or(String::new(), |label| format!(" {label}"));
            let joined = branch.joined_item.as_ref();
            let joined = joined.map_or(String::new(), |item| format!("  result in {item}"));
            let LogBranch {
                agent,
                state,
                session_id,
                ..
            } = branch;
            // No line of a text stands here: a call cannot pass for a branch.
            line(
                text,
                "   ",
                &format!("branch{label} ({agent}) {state}  session {session_id}{joined}"),
            );
        }
        match (&self.reply, &self.error) {
            (Some(reply), _) => {
                line(text, "   ", if self.no_reply { "reply, not posted" } else { "reply" });
                block(text, reply);
            }
            (None, Some(error)) => line(text, "   ", &format!("error: {error}")),
            (None, None) => {}
        }
        if let Some(usage) = &self.usage {
            line(text, "   ", &in_words(usage));
        }
    }
}

/// Usage as its provider says it, in words where it has the usual members.
fn in_words(usage: &Value) -> String {
    match (usage["input_tokens"].as_u64(), usage["output_tokens"].as_u64()) {
        (Some(input), Some(output)) => format!("{input} tokens in, {output} out"),
        _ => format!("usage {usage}"),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A text, indented, without what is behind its limit.
fn block(text: &mut String, shown: &str) {
    let folded = &shown[..shown.floor_char_boundary(FOLDED_BYTES)];
    indent(text, folded);
    if folded.len() < shown.len() {
        line(text, "     ", &format!("[{} more bytes]", shown.len() - folded.len()));
    }
}

/// Writes a text in lines that cannot pass for those around it.
pub fn indent(text: &mut String, shown: &str) {
    for shown in shown.lines() {
        let shown = quote::inert(shown);
        writeln!(text, "     {shown}").expect("writing to a String cannot fail");
    }
}

/// A line of fields, which are others' words.
fn line(text: &mut String, indent: &str, line: &str) {
    let line = quote::one_line(line);
    writeln!(text, "{indent}{line}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_and_repeated_texts_are_folded() {
        let id = "0190b5a8-0000-7000-8000-000000000001";
        let part = |source: &str, same: bool, text: Option<String>| {
            json!({"layer": "input", "part": "message", "source": source, "because": "new_in_thread", "bytes": 5,
                   "tokens_estimate": 1, "cut_bytes": 7, "cut_by": "message_bytes_max", "same_as_previous": same, "text": text})
        };
        let turn = json!({"id": id, "number": 3, "state": "finished", "provider": "default", "context": {"asked": "continue",
            "used": "continue", "reason": "thread_lost", "thread": 2}, "started_at": "2026-01-02T03:04:05Z", "finished_at": null,
            "parts": [part("message/a", false, Some("é".repeat(1_030))), part("message/b", true, Some("b".to_owned())),
                      part("message/c", false, None)],
            "calls": [{"call_id": "c-1", "name": "task_status", "arguments": {"status": "done"}, "state": "finished", "result": "ok"}],
            "calls_left_out": 2, "branches": [
                {"id": id, "label": "tests", "agent": "coder", "state": "finished", "session_id": id, "joined_item": "join:7"},
                {"id": id, "label": null, "agent": "coder", "state": "live", "session_id": id, "joined_item": null}], "reply": "Done.\nReally.", "error": null, "error_class": null, "no_reply": false, "late": true,
            "usage": {"total_tokens": 3}});
        let log: Log = serde_json::from_value(json!({"segments": [
            {"session_id": id, "generation": 1, "thread": null, "boundary": {"reason": "opened", "detail": null, "by": null,
             "at": "2026-01-02T03:04:05Z"}, "turns": []},
            {"session_id": id, "generation": 2, "thread": 2, "boundary": {"reason": "reset", "detail": "It went round.", "by": "Ann",
             "at": "2026-01-02T03:04:05Z"}, "turns": [turn]}], "next_cursor": "ab"}))
        .unwrap();
        let folded = "é".repeat(1_024);
        let expected = format!(
            "== generation 1  session {id}
   opened at 2026-01-02T03:04:05Z
== generation 2, thread 2  session {id}
   reset by Ann at 2026-01-02T03:04:05Z: It went round.

-- turn 3  finished, late  2026-01-02T03:04:05Z  {id}
   context continue (thread_lost)
   input/message from message/a: 5 bytes, 7 bytes cut by message_bytes_max
     {folded}
     [12 more bytes]
   input/message from message/b: 5 bytes, 7 bytes cut by message_bytes_max [as in the turn before]
   input/message from message/c: 5 bytes, 7 bytes cut by message_bytes_max [not kept]
   call c-1 task_status finished
     {{\"status\":\"done\"}}
     ok
   [2 more calls]
   branch tests (coder) finished  session {id}  result in join:7
   branch (coder) live  session {id}
   reply
     Done.
     Really.
   usage {{\"total_tokens\":3}}
More: cursor=ab
"
        );
        assert_eq!(log.text(), expected);
    }

    /// Each text of the record is a line of its own in the text, or two in a block; none shows a character of control.
    #[test]
    fn no_field_leaves_its_line() {
        let id = "0190b5a8-0000-7000-8000-000000000001";
        let page = |said: &str| -> Log {
            let part = json!({"layer": said, "part": said, "source": said, "because": said, "bytes": 5, "tokens_estimate": 1,
                "cut_bytes": 7, "cut_by": said, "same_as_previous": false, "text": said});
            let turn = |reply: Option<&str>| {
                json!({"id": id, "number": 3, "state": said, "provider": said, "context": null, "late": false,
                    "started_at": "2026-01-02T03:04:05Z", "finished_at": null, "parts": [part], "calls": [{"call_id": said,
                    "name": said, "arguments": {said: said}, "state": said, "result": said}], "calls_left_out": 0,
                    "branches": [{"id": id, "label": said, "agent": said, "state": said, "session_id": id, "joined_item": said}],
                    "reply": reply, "error": said, "error_class": said, "no_reply": false, "usage": {said: said}})
            };
            let boundary = json!({"reason": said, "detail": said, "by": said, "at": "2026-01-02T03:04:05Z"});
            let segment = json!({"session_id": id, "generation": 2, "thread": 2, "boundary": boundary,
                "turns": [turn(None), turn(Some(said))]});
            serde_json::from_value(json!({"segments": [segment], "next_cursor": said})).unwrap()
        };
        let plain = page("x").text();
        for (breaks, shown) in [
            ("\r", "\\u{d}"),
            ("\u{b}", "\\u{b}"),
            ("\u{85}", "\\u{85}"),
            ("\u{2028}", "\\u{2028}"),
            ("\u{1b}[1A\u{1b}[2K", "\\u{1b}[1A\\u{1b}[2K"),
            ("\u{7}\0\u{8}", "\\u{7}\\u{0}\\u{8}"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("\u{202e}\u{2066}", "\\u{202e}\\u{2066}"),
            ("\u{e0041}", "\\u{e0041}"),
        ] {
            let text = page(&format!("x{breaks}-- turn 4")).text();
            assert_eq!(text.lines().count(), plain.lines().count(), "{text}");
            assert!(text.contains(&format!("call x{shown}-- turn 4 x{shown}")), "{text}");
            assert!(text.contains(&format!("\n     x{shown}-- turn 4\n")), "{text}");
            assert!(!text.contains(|c: char| c != '\n' && c.is_control()), "{text:?}");
            assert!(!text.contains(breaks), "{text:?}");
        }
        // In a block a line break makes a line of it, with its indent; elsewhere it is told.
        let text = page("x\n-- turn 4").text();
        assert!(
            text.contains("error: x\\n-- turn 4\n") && text.contains("branch x\\n-- turn 4 (x\\n-- turn 4)"),
            "{text}"
        );
        let forged: Vec<&str> = text
            .lines()
            .filter(|line| line.trim_start().starts_with("-- turn 4"))
            .collect();
        // The text of a part and the result of a call of two turns, and a reply.
        assert_eq!(forged, ["     -- turn 4"; 5], "{text}");
    }
}
