//! Effects that happen once: I5, a tool call; I6, an effect of a notification; I11, a reply in its thread; I17, a request with an
//! idempotency key. I10 for replies: at the end every reply is in its thread.

use std::collections::{BTreeMap, BTreeSet};

use time::OffsetDateTime;

use super::{
    Violation,
    evidence::{Evidence, TurnRow},
};
use crate::records::{Answer, Offered};

/// I5, always.
pub(super) fn calls_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut places: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    // HTTP calls have no position among the turn's calls.
    for call in evidence.rows.calls.iter().filter(|call| call.ordinal > 0) {
        let place = (&call.account_id, &call.turn_id, call.ordinal);
        places.entry(place).or_default().push(&call.call_id);
    }
    for ((account, turn, ordinal), calls) in places {
        if calls.len() > 1 {
            found.push(Violation {
                invariant: "I5",
                expected: "a tool call of a turn is run once",
                found: format!(
                    "call {ordinal} of turn {} of {account} was run as {}",
                    turn.as_deref().unwrap_or_default(),
                    calls.join(", ")
                ),
            });
        }
    }
    // The call's record and its effect are one transaction.
    let posts = evidence.rows.calls.iter();
    let posts = posts.filter(|call| call.name == "task_message" && call.state == "finished");
    let mut by_turn: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for call in posts {
        *by_turn
            .entry((&call.account_id, call.turn_id.as_deref().unwrap_or_default()))
            .or_default() += 1;
    }
    for message in evidence
        .rows
        .messages
        .iter()
        .filter(|message| message.body.starts_with("effect "))
    {
        *by_turn
            .entry((&message.account_id, message.turn_id.as_deref().unwrap_or_default()))
            .or_default() -= 1;
    }
    for ((account, turn), difference) in by_turn.into_iter().filter(|(_, difference)| *difference != 0) {
        found.push(Violation {
            invariant: "I5",
            expected: "a finished call of task_message is one message",
            found: format!("turn {turn} of {account}: {difference} calls more than messages"),
        });
    }
    let mut by_account: BTreeMap<&str, i64> = BTreeMap::new();
    let calls = evidence.rows.calls.iter();
    for call in calls.filter(|call| call.name == "task_context_write" && call.state == "finished") {
        *by_account.entry(&call.account_id).or_default() += 1;
    }
    for (account, _, newest) in &evidence.rows.contexts {
        *by_account.entry(account).or_default() -= newest;
    }
    for (account, difference) in by_account.into_iter().filter(|(_, difference)| *difference != 0) {
        found.push(Violation {
            invariant: "I5",
            expected: "a finished call of task_context_write is one version",
            found: format!("{account}: {difference} calls more than versions"),
        });
    }
    found
}

/// I6, always. An interrupted turn may have had effects: the notification's next turn is told so, and may act again. So it is with a turn
/// that waited for another attempt as its session closed, and with one that a handover ended.
pub(super) fn effects_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut effects: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for message in evidence
        .rows
        .messages
        .iter()
        .filter(|message| message.author_kind == "agent")
    {
        let Some(rest) = message.body.strip_prefix("effect ") else {
            continue;
        };
        let effect = rest.split(';').next().unwrap_or_default();
        let turn = message.turn_id.as_deref().unwrap_or_default();
        effects.entry((&message.account_id, effect)).or_default().push(turn);
    }
    let mut found = Vec::new();
    for ((account, effect), turns) in effects.into_iter().filter(|(_, turns)| turns.len() > 1) {
        let distinct: BTreeSet<&str> = turns.iter().copied().collect();
        let first = distinct.iter().filter_map(|turn| evidence.turns.get(&(account, *turn)));
        let Some(first_at) = first.map(|turn| turn.started_at).min() else {
            continue;
        };
        let is_excused = |turn: &&&str| {
            let row = evidence.turns.get(&(account, **turn));
            row.is_some_and(|row| row.state == "failed" || row.state == "unknown" || was_told(evidence, row, first_at))
        };
        let excused = distinct.iter().filter(is_excused).count();
        if distinct.len() < turns.len() || excused + 1 < distinct.len() {
            found.push(Violation {
                invariant: "I6",
                expected: "an effect happens once, unless the turn that had it broke off or the next one was told",
                found: format!("effect {effect} of {account} by the turns {}", turns.join(", ")),
            });
        }
    }
    found
}

/// Whether the agent was told of an interruption since then: with this turn, or with one before it in the same session.
fn was_told(evidence: &Evidence<'_>, turn: &TurnRow, since: OffsetDateTime) -> bool {
    let session = (turn.account_id.as_str(), turn.session_id.as_str());
    let turns = evidence.turns_of.get(&session).into_iter().flatten();
    turns
        .filter(|before| before.number <= turn.number && before.started_at > since)
        .any(|before| before.told)
}

/// I11, and I9 for late replies; always.
pub(super) fn replies_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for ((account, turn), messages) in replies(evidence) {
        let Some(row) = evidence.turns.get(&(account, turn)) else {
            continue;
        };
        let ids = messages.join(", ");
        if messages.len() > 1 {
            found.push(Violation {
                invariant: "I11",
                expected: "a turn's reply is one message",
                found: format!("turn {turn} of {account} replied as {ids}"),
            });
        }
        if row.late || row.no_reply {
            let why = if row.late {
                "its session was closed"
            } else {
                "it had called no_reply"
            };
            found.push(Violation {
                invariant: "I9",
                expected: "what is said too late, or on purpose not, is not posted",
                found: format!("turn {turn} of {account} replied as {ids} though {why}"),
            });
        }
    }
    found
}

/// I10, when the system is idle.
pub(super) fn replies_posted(evidence: &Evidence<'_>) -> Vec<Violation> {
    let posted = replies(evidence);
    let speaking = evidence.rows.turns.iter().filter(|turn| {
        let says = turn.reply.as_deref().is_some_and(|reply| !reply.trim().is_empty());
        let session = evidence
            .sessions
            .get(&(turn.account_id.as_str(), turn.session_id.as_str()));
        // The reply of a branch is its parent's, and that of a replay is only shown.
        let is_branch = session.is_some_and(|session| matches!(session.kind.as_str(), "branch" | "replay"));
        turn.state == "finished" && !turn.late && !turn.no_reply && turn.task_id.is_some() && says && !is_branch
    });
    speaking
        .filter(|turn| !posted.contains_key(&(turn.account_id.as_str(), turn.id.as_str())))
        .map(|turn| Violation {
            invariant: "I10",
            expected: "the reply of a finished turn is in its thread in the end",
            found: format!("turn {} of {} has none", turn.id, turn.account_id),
        })
        .collect()
}

/// Account and turn → messages that are its reply.
fn replies<'a>(evidence: &'a Evidence<'_>) -> BTreeMap<(&'a str, &'a str), Vec<&'a str>> {
    let mut replies: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for message in &evidence.rows.messages {
        let turn = message.turn_id.as_deref().unwrap_or_default();
        let name = (message.account_id.as_str(), turn);
        let row = evidence.turns.get(&name);
        if row.is_some_and(|row| row.reply.as_deref() == Some(message.body.as_str())) {
            replies.entry(name).or_default().push(&message.id);
        }
    }
    replies
}

/// I17, always: a message is posted once, whatever its attempts returned.
pub(super) fn messages_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for offer in &evidence.records.offers {
        let Offered::Message { work, .. } = &offer.what else {
            continue;
        };
        let ids: Vec<&str> = evidence
            .posted(&offer.account, &work.effect)
            .map(|message| message.id.as_str())
            .collect();
        if ids.len() > 1 {
            found.push(Violation {
                invariant: "I17",
                expected: "a request with an idempotency key has one effect",
                found: format!(
                    "offer {} of {}, tried {} times, is the messages {}",
                    offer.number,
                    offer.account,
                    offer.tries.len(),
                    ids.join(", ")
                ),
            });
        }
    }
    found
}

/// I17, always: a repeated request gets the stored answer, and another request under the same key is refused.
pub(super) fn keys_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut said: BTreeMap<_, (u16, serde_json::Value)> = BTreeMap::new();
    let answers = evidence
        .records
        .answers
        .iter()
        .filter(|answer| (200..300).contains(&answer.status));
    for answer in answers {
        let Some(key) = &answer.key else { continue };
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap_or_default();
        let now = (answer.status, body);
        let before = said
            .entry((&answer.account, &answer.path, key))
            .or_insert_with(|| now.clone());
        if *before != now {
            found.push(Violation {
                invariant: "I17",
                expected: "an idempotency key has one stored answer",
                found: format!(
                    "{key} at {}: {} {}, and before {} {}",
                    answer.path, now.0, now.1, before.0, before.1
                ),
            });
        }
    }
    for offer in &evidence.records.offers {
        let Offered::KeyReused { of } = offer.what else {
            continue;
        };
        for tried in &offer.tries {
            let is_right = match tried.answer {
                Answer::Refused { status } => status == 422,
                Answer::Accepted => false,
                Answer::Unknown { .. } => true,
            };
            if !is_right {
                found.push(Violation {
                    invariant: "I17",
                    expected: "another request under a key that was used is refused",
                    found: format!("offer {} under the key of {of}: {:?}", offer.number, tried.answer),
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::fabricated::Story, *};
    use crate::records::{Work, WorkKind};

    #[test]
    fn a_key_has_one_answer_and_one_request() {
        let mut story = Story::delivered();
        let mut answer = story.records.answers[0].clone();
        (answer.key, answer.body) = (Some("offer-1".to_owned()), r#"{"id": "a", "n": 1}"#.to_owned());
        story.records.answers.push(answer.clone());
        r#"{"n": 1, "id": "a"}"#.clone_into(&mut answer.body);
        story.records.answers.push(answer.clone());
        assert_eq!(story.judge(keys_once), []);
        r#"{"n": 2, "id": "a"}"#.clone_into(&mut answer.body);
        story.records.answers.push(answer);
        assert!(story.finds(keys_once, "offer-1"));
        let mut story = Story::delivered();
        story.records.offers[0].what = Offered::KeyReused { of: 7 };
        assert!(story.finds(keys_once, "under the key of 7"));
        story.records.offers[0].tries[0].answer = Answer::Refused { status: 422 };
        assert_eq!(story.judge(keys_once), []);
    }

    #[test]
    fn what_happened_once_is_fine() {
        let story = Story::delivered();
        for check in [calls_once, effects_once, replies_once, replies_posted, messages_once] {
            assert_eq!(story.judge(check), []);
        }
    }

    #[test]
    fn a_call_that_was_run_under_two_ids_is_found() {
        let mut story = Story::delivered();
        let mut again = story.rows.calls[0].clone();
        "message.e1.0.0.again".clone_into(&mut again.call_id);
        story.rows.calls.push(again);
        assert!(story.finds(calls_once, "message.e1.0.0.again"));
        assert!(story.finds(calls_once, "1 calls more"));
    }

    #[test]
    fn a_call_that_wrote_two_versions_or_none_is_found() {
        let mut story = Story::delivered();
        story.rows.contexts.push(("acme".to_owned(), "t-1".to_owned(), 1));
        assert!(story.finds(calls_once, "-1 calls more than versions"));
        let mut writes = story.rows.calls[0].clone();
        "task_context_write".clone_into(&mut writes.name);
        writes.ordinal = 2;
        story.rows.calls.push(writes);
        assert_eq!(story.judge(calls_once), []);
        story.rows.contexts.clear();
        assert!(story.finds(calls_once, "1 calls more than versions"));
    }

    #[test]
    fn an_effect_happens_once_in_a_turn_whatever_became_of_it() {
        let mut story = Story::delivered();
        let again = story.rows.messages[0].clone();
        story.rows.messages.push(again);
        "failed".clone_into(&mut story.rows.turns[0].state);
        assert!(story.finds(effects_once, "effect e1"));
    }

    #[test]
    fn an_effect_may_come_again_after_a_turn_that_broke_off() {
        let mut story = repeated();
        assert!(story.finds(effects_once, "turn-1, turn-2"));
        "unknown".clone_into(&mut story.rows.turns[0].state);
        assert_eq!(story.judge(effects_once), []);
    }

    /// The effect again, in another turn.
    fn repeated() -> Story {
        let mut story = Story::delivered();
        let mut turn = story.rows.turns[0].clone();
        "turn-2".clone_into(&mut turn.id);
        turn.number = 2;
        story.rows.turns.push(turn);
        let mut again = story.rows.messages[0].clone();
        "m-3".clone_into(&mut again.id);
        again.turn_id = Some("turn-2".to_owned());
        story.rows.messages.push(again);
        story
    }

    #[test]
    fn an_effect_is_repeated_only_where_the_agent_was_told() {
        for (state, told, is_fine) in [
            ("aborted", false, false),
            ("aborted", true, true),
            ("finished", false, false),
            ("unknown", false, true),
        ] {
            let mut story = repeated();
            state.clone_into(&mut story.rows.turns[0].state);
            story.rows.turns[1].told = told;
            story.rows.turns[1].started_at = super::super::fabricated::at(7);
            assert_eq!(story.judge(effects_once).is_empty(), is_fine, "{state} {told}");
        }
    }

    #[test]
    fn a_reply_is_posted_once() {
        let mut story = Story::delivered();
        let mut again = story.rows.messages[1].clone();
        "m-3".clone_into(&mut again.id);
        story.rows.messages.push(again);
        assert!(story.finds(replies_once, "m-2, m-3"));
        let mut story = Story::delivered();
        story.rows.messages.truncate(1);
        assert!(story.finds(replies_posted, "turn-1"));
    }

    #[test]
    fn what_was_said_too_late_is_not_posted() {
        let mut story = Story::delivered();
        story.rows.turns[0].late = true;
        assert!(story.finds(replies_once, "its session was closed"));
        story.rows.messages.truncate(1);
        assert_eq!(story.judge(replies_once), []);
        assert_eq!(story.judge(replies_posted), []);
    }

    #[test]
    fn a_request_that_was_tried_twice_is_one_message() {
        let mut story = Story::delivered();
        story.records.offers[0].what = Offered::Message {
            task: "T-1".to_owned(),
            work: Work {
                kind: WorkKind::Reply,
                effect: "e9".to_owned(),
            },
        };
        for id in ["m-8", "m-9"] {
            assert_eq!(story.judge(messages_once), []);
            let mut message = story.rows.messages[0].clone();
            id.clone_into(&mut message.id);
            "user".clone_into(&mut message.author_kind);
            "work=reply effect=e9;".clone_into(&mut message.body);
            story.rows.messages.push(message);
        }
        assert!(story.finds(messages_once, "m-8, m-9"));
    }
}
