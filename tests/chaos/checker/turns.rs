//! I4: one provider call of a session at a time, and a replaced holder changes nothing. I7: a turn records the provider's answer,
//! once. Checked by the provider's own log; always.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use time::{Duration, OffsetDateTime};

use super::{
    Violation,
    evidence::{Evidence, TurnRow},
};
use crate::records::{CallEnd, ProviderCall};

/// The provider records the end of an answer before it sends the last bytes, and the start of a request after it has read all of
/// it: so a consequence of an answer begins after its end, within the clock's resolution.
pub(super) const LOG_SLACK: Duration = Duration::milliseconds(5);
/// A healthy caller closes its connection within this time after it lost its lease.
const HANG_UP_MAX: Duration = Duration::milliseconds(1_500);
/// No fault lasts longer; it is written down when it is over.
const FAULT_MAX: Duration = Duration::seconds(12);
/// A process that was stopped or cut off between its lease check and the first byte sends the call within this time after it
/// resumes. Later it has checked its lease again, and must not send.
const LATE_MAX: Duration = Duration::seconds(2);

/// I4. A frozen or disconnected process cannot abort its call: then two calls overlap, and the answer of the older one must not be
/// used. Exception: such a process may send a call when it resumes, between lease check and first byte; then the older call is that
/// of the lease's holder.
pub(super) fn one_at_a_time(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut by_key: BTreeMap<&str, Vec<&ProviderCall>> = BTreeMap::new();
    for call in &evidence.records.calls {
        by_key.entry(&call.session_key).or_default().push(call);
    }
    let recorded = recorded_answers(evidence);
    let mut found = Vec::new();
    for (key, calls) in by_key {
        for (place, older) in calls.iter().enumerate() {
            let end = older.ended_at.unwrap_or(evidence.records.quiet_at);
            let during = calls[place + 1..]
                .iter()
                .filter(|newer| newer.begun_at + LOG_SLACK < end);
            for newer in during {
                let both = format!(
                    "{key}: call {} of {} from {} to {end}, call {} of {} from {}",
                    older.order, older.caller, older.begun_at, newer.order, newer.caller, newer.begun_at
                );
                if recorded.contains(&(key.to_owned(), older.order)) {
                    // `taken_under_its_lease` checks whether the holder could use the answer.
                    if is_known(evidence, newer) && !sent_by_a_zombie(evidence, newer) {
                        found.push(Violation {
                            invariant: "I4",
                            expected: "the answer of a call that was replaced is not taken",
                            found: format!("{both}; the older one's answer was recorded"),
                        });
                    }
                } else if newer.begun_at + HANG_UP_MAX < end && is_past(evidence, older) && !was_harmed(evidence, older)
                {
                    found.push(Violation {
                        invariant: "I4",
                        expected: "a session has one provider call in flight",
                        found: both,
                    });
                }
            }
        }
    }
    found
}

/// I4 by used answers, whenever they came: only the session's current holder repeats a call, and from then on the previous call's
/// answer is void. A call that a resumed process sends is not made by a holder.
pub(super) fn newest_taken(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut by_key: BTreeMap<(&str, &str), Vec<&ProviderCall>> = BTreeMap::new();
    for call in &evidence.records.calls {
        by_key
            .entry((&call.session_key, &call.idempotency_key))
            .or_default()
            .push(call);
    }
    let recorded = recorded_answers(evidence);
    let mut found = Vec::new();
    for ((key, _), calls) in by_key {
        let Some(taken) = calls
            .iter()
            .position(|call| recorded.contains(&(key.to_owned(), call.order)))
        else {
            continue;
        };
        for newer in &calls[taken + 1..] {
            if is_known(evidence, newer) && !sent_by_a_zombie(evidence, newer) {
                let older = calls[taken];
                found.push(Violation {
                    invariant: "I4",
                    expected: "the answer of a call that was replaced is not taken",
                    found: format!(
                        "{key}: call {} of {} was taken, though {} had sent it again as call {}",
                        older.order, older.caller, newer.caller, newer.order
                    ),
                });
            }
        }
    }
    found
}

/// I4 by claims, without exceptions: the answer that ended a turn belongs to a call under the turn's last claim. An answer of an
/// earlier call belongs to a replaced holder.
pub(super) fn taken_under_its_lease(evidence: &Evidence<'_>) -> Vec<Violation> {
    let calls: HashMap<usize, &ProviderCall> = evidence.records.calls.iter().map(|call| (call.order, call)).collect();
    let mut found = Vec::new();
    for turn in evidence.rows.turns.iter().filter(|turn| turn.state == "finished") {
        let order = turn.response_id.as_deref().and_then(order_of_response);
        let (Some(call), Some(sent_at)) = (order.and_then(|order| calls.get(&order)), turn.sent_at) else {
            continue;
        };
        if call.begun_at < sent_at {
            found.push(Violation {
                invariant: "I4",
                expected: "the answer that a turn takes is of a call under its last claim",
                found: format!(
                    "turn {} of {}: call {} of {} began at {}, and the turn was claimed again at {sent_at}",
                    turn.id, turn.account_id, call.order, call.caller, call.begun_at
                ),
            });
        }
    }
    found
}

/// Whether every earlier fault of its caller is recorded.
pub(super) fn is_known(evidence: &Evidence<'_>, call: &ProviderCall) -> bool {
    evidence.at_rest || call.begun_at + FAULT_MAX < evidence.records.quiet_at
}

/// Whether every fault during it is recorded.
fn is_past(evidence: &Evidence<'_>, call: &ProviderCall) -> bool {
    let end = call.ended_at.filter(|end| *end + FAULT_MAX < evidence.records.quiet_at);
    evidence.at_rest || end.is_some()
}

/// Whether a fault hit its caller, or all processes, during the call.
pub(super) fn was_harmed(evidence: &Evidence<'_>, call: &ProviderCall) -> bool {
    let end = call.ended_at.unwrap_or(evidence.records.quiet_at);
    harmed_between(evidence, call, call.begun_at, end)
}

/// Whether its caller may have resumed just before, between lease check and first byte.
pub(super) fn sent_by_a_zombie(evidence: &Evidence<'_>, call: &ProviderCall) -> bool {
    harmed_between(evidence, call, call.begun_at - LATE_MAX, call.begun_at)
}

fn harmed_between(evidence: &Evidence<'_>, call: &ProviderCall, from: OffsetDateTime, until: OffsetDateTime) -> bool {
    evidence.records.faults.iter().any(|fault| {
        let concerns = fault.target == call.caller || fault.target.starts_with("every");
        concerns && fault.from <= until && fault.until >= from
    })
}

/// The provider's number of every answer that a turn used: `resp_{order}` for texts, and the end of call ids.
fn recorded_answers(evidence: &Evidence<'_>) -> BTreeSet<(String, usize)> {
    let mut recorded = BTreeSet::new();
    for turn in &evidence.rows.turns {
        let name = (turn.account_id.as_str(), turn.session_id.as_str());
        let Some(session) = evidence.sessions.get(&name) else {
            continue;
        };
        let mut enter = |order: Option<usize>| {
            recorded.extend(order.map(|order| (session.key.clone(), order)));
        };
        enter(turn.response_id.as_deref().and_then(order_of_response));
        for call_id in journal_calls(turn) {
            enter(call_id.rsplit('.').next().and_then(|order| order.parse().ok()));
        }
    }
    recorded
}

fn order_of_response(id: &str) -> Option<usize> {
    id.strip_prefix("resp_")?.parse().ok()
}

pub(super) fn journal_calls(turn: &TurnRow) -> impl Iterator<Item = &str> {
    let rounds = turn.journal.as_array().into_iter().flatten();
    rounds
        .flat_map(|round| round["calls"].as_array().into_iter().flatten())
        .filter_map(|call| call["call_id"].as_str())
}

/// I7. Turn numbers of a session start at 1 without a gap; a finished turn has the reply that the provider gave it.
pub(super) fn recorded_as_answered(evidence: &Evidence<'_>) -> Vec<Violation> {
    let texts: HashMap<(&str, usize), &str> = evidence
        .records
        .calls
        .iter()
        .filter_map(|call| match &call.end {
            CallEnd::Text { text } => Some(((call.session_key.as_str(), call.order), text.as_str())),
            CallEnd::Open | CallEnd::Calls { .. } | CallEnd::Failure { .. } | CallEnd::Aborted => None,
        })
        .collect();
    let mut found = Vec::new();
    let mut broken = |expected, found_text| {
        found.push(Violation {
            invariant: "I7",
            expected,
            found: found_text,
        });
    };
    for (name, turns) in &evidence.turns_of {
        let Some(session) = evidence.sessions.get(name) else {
            broken("a turn has its session", format!("session {} of {}", name.1, name.0));
            continue;
        };
        if turns.iter().zip(1..).any(|(turn, number)| turn.number != number) {
            let numbers: Vec<String> = turns.iter().map(|turn| turn.number.to_string()).collect();
            broken(
                "turns of a session are numbered 1, 2, 3, …",
                format!("{}: {}", session.key, numbers.join(", ")),
            );
        }
        let mut taken = BTreeMap::new();
        for turn in turns.iter().filter(|turn| turn.state == "finished") {
            let order = turn.response_id.as_deref().and_then(order_of_response);
            let Some(order) = order else { continue };
            if let Some(other) = taken.insert(order, turn.number) {
                broken(
                    "an answer is taken by one turn",
                    format!("{}: resp_{order} by turns {other} and {}", session.key, turn.number),
                );
            }
            // An answer whose connection the caller closed may still have arrived.
            if let Some(text) = texts.get(&(session.key.as_str(), order))
                && turn.reply.as_deref() != Some(*text)
            {
                broken(
                    "a turn replies what the provider said",
                    format!(
                        "{} turn {}: {:?} and not {text:?}",
                        session.key,
                        turn.number,
                        turn.reply.as_deref().unwrap_or_default()
                    ),
                );
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{
        super::fabricated::{Story, at, provider_call},
        *,
    };
    use crate::records::Fired;

    /// A call of another process that ran from 4.0 to 9.0, during which the turn's own calls were made.
    fn with_overlap() -> Story {
        let mut story = Story::delivered();
        let mut zombie = provider_call(7, (0, 9), CallEnd::Aborted);
        "delivery-1".clone_into(&mut zombie.caller);
        story.records.calls.insert(0, zombie);
        story
    }

    fn frozen(story: &mut Story, target: &str) {
        story.records.faults.push(Fired {
            kind: "freeze".to_owned(),
            target: target.to_owned(),
            from: at(1),
            until: at(8),
        });
    }

    #[test]
    fn calls_one_after_the_other_are_fine() {
        assert_eq!(Story::delivered().judge(one_at_a_time), []);
        assert_eq!(Story::delivered().judge(recorded_as_answered), []);
    }

    #[test]
    fn two_calls_at_once_are_found_unless_the_older_caller_could_not_hang_up() {
        let mut story = with_overlap();
        assert!(story.finds(one_at_a_time, "call 7 of delivery-1"));
        frozen(&mut story, "delivery-0");
        assert!(story.finds(one_at_a_time, "call 7"), "the other one was frozen");
        frozen(&mut story, "delivery-1");
        assert_eq!(story.judge(one_at_a_time), []);
    }

    #[test]
    fn what_is_under_way_may_have_a_reason_that_is_not_known_yet() {
        let mut story = with_overlap();
        story.at_rest = false;
        assert!(story.finds(one_at_a_time, "call 7"), "long ago");
        story.records.quiet_at = at(10);
        assert_eq!(story.judge(one_at_a_time), []);
    }

    #[test]
    fn a_zombies_answer_is_found() {
        let mut story = with_overlap();
        frozen(&mut story, "delivery-1");
        story.rows.turns[0].response_id = Some("resp_7".to_owned());
        assert!(story.finds(one_at_a_time, "was recorded"));
        frozen(&mut story, "delivery-0");
        assert_eq!(story.judge(one_at_a_time), [], "the newer one was sent by a zombie");
        let mut story = with_overlap();
        frozen(&mut story, "delivery-1");
        story.rows.turns[0].journal = serde_json::json!([{"calls": [{"call_id": "message.e1.0.7"}]}]);
        assert!(story.finds(one_at_a_time, "was recorded"));
    }

    #[test]
    fn an_answer_is_taken_of_the_newest_call_alone() {
        let mut story = Story::delivered();
        assert_eq!(story.judge(newest_taken), []);
        let mut again = provider_call(
            2,
            (7, 8),
            CallEnd::Text {
                text: "reply e1".to_owned(),
            },
        );
        story.records.calls[1]
            .idempotency_key
            .clone_into(&mut again.idempotency_key);
        "delivery-1".clone_into(&mut again.caller);
        story.records.calls.push(again);
        assert!(story.finds(newest_taken, "call 1 of delivery-0 was taken"));
        frozen(&mut story, "delivery-1");
        assert_eq!(story.judge(newest_taken), [], "it was sent by a zombie");
        story.records.faults[0].until = at(4);
        assert!(
            story.finds(newest_taken, "was taken"),
            "it had come to itself long before"
        );
    }

    #[test]
    fn an_answer_from_before_the_last_claim_is_found_whatever_happened() {
        let mut story = Story::delivered();
        assert_eq!(story.judge(taken_under_its_lease), []);
        story.rows.turns[0].sent_at = Some(at(6));
        frozen(&mut story, "delivery-0");
        assert!(story.finds(taken_under_its_lease, "call 1 of delivery-0"));
    }

    #[test]
    fn a_reply_is_what_the_provider_said() {
        let mut story = Story::delivered();
        story.rows.turns[0].reply = Some("something else".to_owned());
        assert!(story.finds(recorded_as_answered, "something else"));
    }

    #[test]
    fn a_gap_in_the_numbers_and_an_answer_taken_twice_are_found() {
        let mut story = Story::delivered();
        let mut third = story.rows.turns[0].clone();
        third.number = 3;
        story.rows.turns.push(third);
        assert!(story.finds(recorded_as_answered, "1, 3"));
        assert!(story.finds(recorded_as_answered, "resp_1 by turns 1 and 3"));
    }
}
