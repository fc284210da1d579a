//! I2: one active session of a conversation. I3: generations go up by one and never come back. I9: a terminal status closes
//! sessions. Checked always.

use std::collections::{BTreeMap, BTreeSet};

use time::{Duration, OffsetDateTime};

use super::{
    Violation,
    evidence::{CallRow, Evidence, SessionRow, is_on},
};
use crate::plan::REVIEWED;

/// A session that was opened less than this before its task was moved may have been opened while the mover waited for locks:
/// timestamps are those of the transactions' starts.
pub(super) const LOCKS_WAIT_MAX: Duration = Duration::seconds(15);

/// I2 and I3.
pub(super) fn generations(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut conversations: BTreeMap<_, Vec<&SessionRow>> = BTreeMap::new();
    for session in &evidence.rows.sessions {
        let of = (
            &session.account_id,
            (&session.kind, session.origin()),
            &session.task_id,
            &session.agent_id,
        );
        conversations.entry(of).or_default().push(session);
    }
    let mut found = Vec::new();
    for mut sessions in conversations.into_values() {
        sessions.sort_by_key(|session| session.generation);
        let list = || {
            let one = |session: &&SessionRow| {
                format!(
                    "{}{}",
                    session.key,
                    if session.closed_at.is_none() { " (open)" } else { "" }
                )
            };
            sessions.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        if sessions.iter().filter(|session| session.closed_at.is_none()).count() > 1 {
            found.push(Violation {
                invariant: "I2",
                expected: "a conversation has one open session",
                found: list(),
            });
        }
        if sessions
            .iter()
            .zip(1..)
            .any(|(session, generation)| session.generation != generation)
        {
            found.push(Violation {
                invariant: "I3",
                expected: "generations are 1, 2, 3, … without a gap and none twice",
                found: list(),
            });
        }
        let newest = sessions.len() - 1;
        if sessions[..newest].iter().any(|session| session.closed_at.is_none()) {
            found.push(Violation {
                invariant: "I3",
                expected: "only the newest generation is open",
                found: list(),
            });
        }
        for session in &sessions {
            let tail = format!(":{}:v{}", session.account_id, session.generation);
            if !session.key.ends_with(&tail) {
                found.push(Violation {
                    invariant: "I3",
                    expected: "a key names the session's account and generation",
                    found: format!("{} is not …{tail}", session.key),
                });
            }
        }
    }
    found
}

/// I9: by turns that moved their own tasks, which the session's lock orders, and by people's moves, by timestamps.
pub(super) fn done_closes(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let broken = |expected, found| Violation {
        invariant: "I9",
        expected,
        found,
    };
    let mut seen = BTreeSet::new();
    for call in evidence.rows.calls.iter().filter(|call| moves_to_done(call)) {
        let name = (call.account_id.as_str(), call.session_id.as_str());
        let Some(session) = evidence.sessions.get(&name).filter(|session| session.kind == "task") else {
            continue;
        };
        // Its review catches the move.
        if is_on(session, REVIEWED) {
            continue;
        }
        if session.closed_at.is_none() && seen.insert(name) {
            found.push(broken(
                "done closes the session in which it was said",
                format!(
                    "{} is open, though its call {} moved its task to done",
                    session.key, call.call_id
                ),
            ));
        }
        let turn = call.turn_id.as_deref().unwrap_or_default();
        let Some(closing) = evidence.turns.get(&(call.account_id.as_str(), turn)) else {
            continue;
        };
        let turns = evidence.turns_of.get(&name).into_iter().flatten();
        for later in turns.filter(|turn| turn.number > closing.number) {
            found.push(broken(
                "after done no turn begins in that generation",
                format!(
                    "{}: turn {} moved its task to done, and turn {} began",
                    session.key, closing.number, later.number
                ),
            ));
        }
    }
    for moved in evidence.rows.moves.iter().filter(|moved| moved.to == "done") {
        // A replay has no effect on its task, and may be made of a task that is done: it ends by itself.
        let of_task = evidence.rows.sessions.iter().filter(|session| {
            session.account_id == moved.account_id
                && session.task_id.as_deref() == Some(moved.task_id.as_str())
                && session.kind != "replay"
        });
        for session in of_task.filter(|session| session.opened_at + LOCKS_WAIT_MAX < moved.created_at) {
            if session
                .closed_at
                .is_none_or(|closed_at| closed_at > moved.created_at + LOCKS_WAIT_MAX)
            {
                found.push(broken(
                    "done closes all sessions of the task",
                    format!(
                        "{} was open after its task was done at {}",
                        session.key, moved.created_at
                    ),
                ));
            }
        }
    }
    found
}

/// I3: a closed generation gets no turn and none of its tools has an effect, whatever old message arrives. Work that began while
/// the closing transaction waited for locks is allowed.
pub(super) fn closed_for_good(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let closed_long_before = |account: &str, session: &str, at: OffsetDateTime| {
        let session = evidence.sessions.get(&(account, session))?;
        (session.closed_at? + LOCKS_WAIT_MAX < at).then_some(session.key.as_str())
    };
    for turn in &evidence.rows.turns {
        if let Some(key) = closed_long_before(&turn.account_id, &turn.session_id, turn.started_at) {
            found.push(Violation {
                invariant: "I3",
                expected: "a closed generation gets no turn",
                found: format!("{key}: turn {} began at {}", turn.number, turn.started_at),
            });
        }
    }
    let effects = evidence.rows.calls.iter();
    for call in effects.filter(|call| call.state == "finished" && !call.late) {
        if let Some(key) = closed_long_before(&call.account_id, &call.session_id, call.started_at) {
            found.push(Violation {
                invariant: "I3",
                expected: "no tool call of a closed generation has an effect",
                found: format!("{key}: call {} of {} at {}", call.call_id, call.name, call.started_at),
            });
        }
    }
    found
}

fn moves_to_done(call: &CallRow) -> bool {
    let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    call.name == "task_status" && call.state == "finished" && arguments["status"] == "done"
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            evidence::MoveRow,
            fabricated::{Story, at},
        },
        *,
    };

    fn next(story: &Story, generation: i32) -> SessionRow {
        let mut session = story.rows.sessions[0].clone();
        session.id = format!("session-{generation}");
        session.generation = generation;
        session.key = session.key.replace(":v1", &format!(":v{generation}"));
        session
    }

    #[test]
    fn generations_follow_each_other() {
        let mut story = Story::delivered();
        story.rows.sessions[0].closed_at = Some(at(7));
        let second = next(&story, 2);
        story.rows.sessions.push(SessionRow {
            closed_at: None,
            ..second
        });
        assert_eq!(story.judge(generations), []);
        story.rows.sessions[0].closed_at = None;
        let invariants: Vec<_> = story.judge(generations).iter().map(|one| one.invariant).collect();
        assert_eq!(invariants, ["I2", "I3"]);
    }

    #[test]
    fn a_number_that_is_missing_or_there_twice_is_found() {
        for generation in [1, 3] {
            let mut story = Story::delivered();
            story.rows.sessions[0].closed_at = Some(at(7));
            let second = next(&story, generation);
            story.rows.sessions.push(SessionRow {
                closed_at: None,
                ..second
            });
            assert!(story.finds(generations, "v1"), "{generation}");
        }
    }

    #[test]
    fn a_key_of_another_account_is_found() {
        let mut story = Story::delivered();
        "task:t-1:agent:agent-1:other:v1".clone_into(&mut story.rows.sessions[0].key);
        assert!(story.finds(generations, "other"));
    }

    #[test]
    fn done_by_a_tool_closes_its_session_for_good() {
        let mut story = Story::delivered();
        let mut done = story.rows.calls[0].clone();
        "task_status".clone_into(&mut done.name);
        r#"{"task_id": "T-1", "status": "done"}"#.clone_into(&mut done.arguments);
        story.rows.calls.push(done);
        assert!(story.finds(done_closes, "is open"));
        story.rows.sessions[0].closed_at = Some(at(7));
        assert_eq!(story.judge(done_closes), []);
        let mut later = story.rows.turns[0].clone();
        "turn-2".clone_into(&mut later.id);
        later.number = 2;
        story.rows.turns.push(later);
        assert!(story.finds(done_closes, "turn 2 began"));
    }

    #[test]
    fn a_closed_generation_does_nothing_any_more() {
        let mut story = Story::delivered();
        story.rows.sessions[0].closed_at = Some(at(7));
        assert_eq!(story.judge(closed_for_good), []);
        story.rows.turns[0].started_at = at(30);
        story.rows.calls[0].started_at = at(30);
        assert!(story.finds(closed_for_good, "turn 1 began"));
        assert!(story.finds(closed_for_good, "task_message at"));
        story.rows.calls[0].late = true;
        assert!(!story.finds(closed_for_good, "task_message at"));
    }

    #[test]
    fn done_by_a_person_closes_what_was_open() {
        let mut story = Story::delivered();
        story.rows.moves.push(MoveRow {
            account_id: "acme".to_owned(),
            task_id: "t-1".to_owned(),
            to: "done".to_owned(),
            created_at: at(50),
        });
        assert!(story.finds(done_closes, "v1 was open"));
        story.rows.sessions[0].kind = "replay".to_owned();
        assert_eq!(story.judge(done_closes), [], "a replay goes on");
        story.rows.sessions[0].kind = "task".to_owned();
        story.rows.sessions[0].closed_at = Some(at(50));
        assert_eq!(story.judge(done_closes), []);
        story.rows.sessions[0].closed_at = None;
        story.rows.sessions[0].opened_at = at(49);
        assert_eq!(story.judge(done_closes), [], "opened while the mover waited");
    }
}
