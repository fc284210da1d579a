//! Shows turns with their texts, as many as a page may have, and puts them into segments: one for each thread of a provider in each
//! generation. Pure.

use std::collections::HashMap;

use api::{
    log::{Boundary, LogBranch, LogPart, LogTurn, Segment},
    turns::Turn,
};
use domain::CloseReason;
use prompt::manifest::Part;
use uuid::Uuid;

use super::store::GenerationRow;
use crate::turns::sent::{Earlier, Piece, ShownPart, Stored, manifest_of, parts_shown, pieces, word};

/// A generation of a page, with its turns on the page.
pub(super) struct Generation {
    pub session: Uuid,
    pub number: i32,
    /// None: the page goes on with it.
    pub begins: Option<Boundary>,
    pub turns: Vec<LogTurn>,
}

/// How a generation begins: why the one before was closed.
pub(super) fn beginning(before: Option<&GenerationRow>, own: &GenerationRow) -> Boundary {
    let reason = before.and_then(|before| before.close_reason.as_deref());
    let detail = before.and_then(|before| before.close_detail.as_deref());
    let is_reset = reason == Some(CloseReason::Reset.as_str());
    let asked = detail.filter(|_| is_reset).and_then(asked);
    Boundary {
        reason: reason.unwrap_or("opened").to_owned(),
        detail: asked.map(|(_, why)| why).or(detail).map(str::to_owned),
        by: asked.map(|(by, _)| by.to_owned()),
        at: own.opened_at.into(),
    }
}

/// Who asked for a reset and why, as `ResetRequest::detail` has put it into words.
fn asked(detail: &str) -> Option<(&str, &str)> {
    detail.strip_prefix("by ")?.split_once(": ")
}

/// The segments of a page. A generation without turns is one, too.
pub(super) fn segments(generations: Vec<Generation>) -> Vec<Segment> {
    let mut segments = Vec::new();
    for generation in generations {
        let Generation {
            session,
            number,
            begins,
            turns,
        } = generation;
        let mut threads: Vec<Segment> = vec![Segment {
            session_id: session,
            generation: number,
            thread: turns.first().and_then(thread_of),
            boundary: begins,
            turns: Vec::new(),
        }];
        for turn in turns {
            let thread = thread_of(&turn);
            let segment = threads.last_mut().expect("a generation has one at least");
            if segment.thread == thread {
                segment.turns.push(turn);
                continue;
            }
            let boundary = change(&turn);
            threads.push(Segment {
                session_id: session,
                generation: number,
                thread,
                boundary: Some(boundary),
                turns: vec![turn],
            });
        }
        segments.extend(threads);
    }
    segments
}

fn thread_of(turn: &LogTurn) -> Option<i32> {
    turn.context.as_ref().map(|context| context.thread)
}

/// Why a turn is in another thread than the one before it.
fn change(turn: &LogTurn) -> Boundary {
    let context = turn.context.as_ref();
    let reason = context.and_then(|context| context.reason);
    let used = context.map_or_else(|| "unknown".to_owned(), |context| context.used.to_string());
    let lost_after = context.and_then(|context| context.lost_after);
    Boundary {
        reason: reason.map_or(used, |reason| reason.to_string()),
        detail: lost_after.map(|rounds| format!("during turn {}, after {rounds} answers with tool calls", turn.number)),
        by: None,
        at: turn.started_at,
    }
}

/// The branches that turns spawned, by turn.
pub(super) type Branches = HashMap<Uuid, Vec<LogBranch>>;

/// The turns that fit, at least one, each with its session. Counts the JSON of a turn: it holds every text, from whatever row.
pub(super) fn shown(
    turns: Vec<Turn>,
    earlier: Earlier<'_>,
    mut branches: Branches,
    bytes_max: usize,
) -> Vec<(Uuid, LogTurn)> {
    let (mut shown, mut bytes) = (Vec::new(), 0_usize);
    for turn in turns {
        let session = turn.session_id;
        let branches = branches.remove(&turn.id).unwrap_or_default();
        let turn = with_texts(turn, earlier, branches);
        let json = serde_json::to_vec(&turn).expect("a turn serialises: its maps have string keys");
        bytes = bytes.saturating_add(json.len());
        if bytes > bytes_max && !shown.is_empty() {
            break;
        }
        shown.push((session, turn));
    }
    shown
}

fn with_texts(turn: Turn, earlier: Earlier<'_>, branches: Vec<LogBranch>) -> LogTurn {
    let manifest = manifest_of(&turn);
    let stored = Stored {
        instructions: turn.instructions.as_deref(),
        input: &turn.input,
        notes: &turn.notes,
    };
    let pieces = manifest.as_ref().map(|manifest| pieces(stored, manifest, earlier));
    let pieces = pieces.unwrap_or_default();
    let shown = parts_shown(&turn);
    // Of equal parts, the first.
    let known: HashMap<&Part, &ShownPart> = shown.iter().rev().map(|shown| (&shown.part, shown)).collect();
    let parts = pieces.iter().map(|piece| part(piece, &known)).collect();
    LogTurn {
        id: turn.id,
        number: turn.number,
        state: turn.state,
        provider: turn.provider,
        context: turn.context,
        started_at: turn.started_at,
        finished_at: turn.finished_at,
        parts,
        calls: turn.tool_calls,
        calls_left_out: turn.tool_calls_left_out,
        branches,
        reply: turn.reply,
        error: turn.error,
        error_class: turn.error_class,
        no_reply: turn.no_reply,
        late: turn.late,
        usage: turn.usage,
    }
}

/// `known`: the parts of its turn.
fn part(piece: &Piece<'_>, known: &HashMap<&Part, &ShownPart>) -> LogPart {
    let part = &piece.part;
    let shown = known.get(&**part);
    LogPart {
        layer: piece.layer.to_owned(),
        part: word(&part.part),
        because: word(&part.because),
        bytes: part.bytes,
        tokens_estimate: shown.map_or(0, |shown| shown.tokens_estimate),
        cut_bytes: part.cut_bytes,
        cut_by: part.cut_by.as_ref().map(word),
        same_as_previous: shown.is_some_and(|shown| shown.same_as_previous),
        text: piece.text.as_deref().map(str::to_owned),
        source: part.source.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use prompt::{
        Manifest,
        manifest::{Layer, PartKind, Source},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::turns::sent::manifest_shown;

    const ID: &str = "0190b5a8-0000-7000-8000-000000000001";

    fn turn(number: i64, context: Value) -> LogTurn {
        let turn = json!({"id": ID, "number": number, "state": "finished", "provider": "default", "context": context,
            "started_at": "2026-01-02T03:04:05Z", "finished_at": null, "parts": [], "calls": [], "calls_left_out": 0, "reply": null,
            "error": null, "error_class": null, "no_reply": false, "late": false, "usage": null});
        serde_json::from_value(turn).unwrap()
    }

    fn context(thread: i32, used: &str, reason: Value) -> Value {
        json!({"asked": "continue", "used": used, "reason": reason, "thread": thread})
    }

    fn generation(number: i32, begins: &str, turns: Vec<LogTurn>) -> Generation {
        let begins = Boundary {
            reason: begins.to_owned(),
            detail: None,
            by: None,
            at: time::OffsetDateTime::UNIX_EPOCH.into(),
        };
        Generation {
            session: Uuid::nil(),
            number,
            begins: Some(begins).filter(|begins| !begins.reason.is_empty()),
            turns,
        }
    }

    /// Generation, thread, reason and the numbers of the turns of each segment.
    fn lines(generations: Vec<Generation>) -> Vec<String> {
        let segments = segments(generations);
        let line = |segment: &Segment| {
            let reason = segment.boundary.as_ref().map_or("-", |boundary| &boundary.reason);
            let turns: Vec<i64> = segment.turns.iter().map(|turn| turn.number).collect();
            format!("{} {:?} {reason} {turns:?}", segment.generation, segment.thread)
        };
        segments.iter().map(line).collect()
    }

    #[test]
    fn a_segment_is_a_thread_of_a_generation() {
        let goes_on = |number, thread| turn(number, context(thread, "continue", Value::Null));
        let lost = turn(3, context(2, "continue", json!("thread_lost")));
        let assembled = |number| turn(number, context(3, "assembled", Value::Null));
        let found = lines(vec![
            generation(
                1,
                "opened",
                vec![goes_on(1, 1), goes_on(2, 1), lost, goes_on(4, 2), assembled(5)],
            ),
            generation(2, "task_done", Vec::new()),
            generation(3, "reset", vec![turn(1, context(1, "continue", json!("first")))]),
        ]);
        assert_eq!(
            found,
            [
                "1 Some(1) opened [1, 2]",
                "1 Some(2) thread_lost [3, 4]",
                "1 Some(3) assembled [5]",
                "2 None task_done []",
                "3 Some(1) reset [1]",
            ]
        );
    }

    #[test]
    fn a_reset_says_who_asked_for_it() {
        let own = |generation: i32, reason: Option<&str>, detail: Option<String>| GenerationRow {
            id: domain::SessionId::from(Uuid::nil()),
            generation,
            opened_at: time::OffsetDateTime::UNIX_EPOCH,
            close_reason: reason.map(str::to_owned),
            close_detail: detail,
        };
        let request: domain::ResetRequest =
            serde_json::from_value(json!({"reason": "It is stuck: twice.", "queue": "keep",
            "by": {"kind": "user", "id": "u-1", "name": "Ann"}, "in_flight": "cancel", "at": "2026-01-02T03:04:05Z"}))
            .unwrap();
        let check = |reason: &str, detail: Option<String>, expected: (Option<&str>, Option<&str>)| {
            let boundary = beginning(Some(&own(1, Some(reason), detail)), &own(2, None, None));
            assert_eq!(
                (boundary.by.as_deref(), boundary.detail.as_deref()),
                expected,
                "{reason}"
            );
        };
        check(
            "reset",
            Some(request.detail()),
            (Some("Ann"), Some("It is stuck: twice.")),
        );
        check(
            "reset",
            Some("Unknown words.".to_owned()),
            (None, Some("Unknown words.")),
        );
        check("reset", None, (None, None));
        check("rotated", Some("by rule: x".to_owned()), (None, Some("by rule: x")));
    }

    /// More parts than a comparison of each with each has time for. Each third part is one that came before it, too.
    #[test]
    fn a_turn_of_many_parts_is_shown_with_all_of_them() {
        let count = 20_000;
        let part = |n: usize| {
            let named = if n.is_multiple_of(3) { n / 2 } else { n };
            Part::of(
                Layer::Input,
                PartKind::Notification,
                Source::named(format!("notification/n-{named}")),
                "text",
            )
        };
        let manifest = |parts: Vec<Part>| Manifest {
            parts,
            ..Manifest::new(domain::InstructionLayout::Layered)
        };
        let parts: Vec<Part> = (0..count).map(part).collect();
        let previous = manifest(parts.iter().step_by(2).cloned().collect());
        let shown = manifest_shown(manifest(parts.clone()), Vec::new(), Some(&previous));
        let before: HashSet<String> = previous.parts.iter().map(|part| part.source.to_string()).collect();
        let turn: Turn = serde_json::from_value(json!({
            "id": ID, "session_id": ID, "generation": 1, "number": 1, "state": "finished", "notifications": [],
            "profile": {"version": "1", "hash": ""}, "instructions": null, "input": "text".repeat(count), "reply": null,
            "tool_calls": [], "usage": null, "error": null, "error_class": null, "provider": "default", "response_id": null,
            "provider_calls": 1, "task_history_called": false, "no_reply": false, "late": false,
            "started_at": "2026-01-02T03:04:05Z", "finished_at": null, "manifest": shown,
        }))
        .unwrap();
        let pasts = HashMap::new();
        let earlier = Earlier {
            pasts: &pasts,
            spawning: None,
        };
        let turn = with_texts(turn, earlier, Vec::new());
        assert_eq!(turn.parts.len(), count);
        for (shown, part) in turn.parts.iter().zip(&parts) {
            let source = part.source.to_string();
            assert_eq!(
                (shown.tokens_estimate, shown.same_as_previous, shown.text.as_deref()),
                (1, before.contains(&source), Some("text"))
            );
            assert_eq!(shown.source, source);
        }
    }

    #[test]
    fn turns_of_a_version_without_threads_are_one_segment() {
        let found = lines(vec![generation(
            1,
            "",
            vec![turn(7, Value::Null), turn(8, Value::Null)],
        )]);
        assert_eq!(found, ["1 None - [7, 8]"]);
    }
}
