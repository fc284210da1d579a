//! I23: behind an open breaker one call is in flight at a time, and nothing fails because of it. Always.

use time::{Duration, OffsetDateTime};

use super::{
    Violation,
    evidence::{Evidence, TurnRow},
    turns::{is_known, sent_by_a_zombie, was_harmed},
};
use crate::{
    records::{CallEnd, ProviderCall},
    system::BREAKER_PROBE_MAX,
};

/// An event has the time at which its transaction began; a transaction waits for locks no longer than this.
const COMMIT_MAX: Duration = Duration::seconds(3);
/// A caller that dropped its call has given the probe back.
const HANG_UP_MAX: Duration = Duration::milliseconds(100);

/// From the first opening until a call that began behind it succeeds, which closes the breaker: events of closings may be lost.
fn stretches(evidence: &Evidence<'_>) -> Vec<(OffsetDateTime, OffsetDateTime)> {
    let mut opened: Vec<OffsetDateTime> = evidence.records.heard.opened.values().copied().collect();
    opened.sort_unstable();
    let mut found: Vec<(OffsetDateTime, OffsetDateTime)> = Vec::new();
    for at in opened {
        if found.last().is_some_and(|(_, until)| at < *until) {
            continue;
        }
        let calls = evidence.records.calls.iter().filter(|call| call.begun_at > at);
        let good = calls.filter(|call| matches!(call.end, CallEnd::Text { .. } | CallEnd::Calls { .. }));
        let until = good.filter_map(|call| call.ended_at).min();
        found.push((at, until.unwrap_or(evidence.records.quiet_at)));
    }
    found
}

/// A probe has its time alone, unless a fault hits its caller.
pub(super) fn one_probe(evidence: &Evidence<'_>) -> Vec<Violation> {
    let turn_of = |call: &ProviderCall| -> Option<&TurnRow> {
        let (turn, _) = call.idempotency_key.split_once(':')?;
        evidence.rows.turns.iter().find(|row| row.id == turn)
    };
    let mut found = Vec::new();
    for (opened_at, until) in stretches(evidence) {
        let from = opened_at + COMMIT_MAX;
        let claimed = |call: &&ProviderCall| {
            let claimed_at = turn_of(call).and_then(|turn| turn.sent_at);
            from < call.begun_at && call.begun_at < until && claimed_at.is_some_and(|at| from < at)
        };
        let calls: Vec<&ProviderCall> = evidence.records.calls.iter().filter(claimed).collect();
        for (place, older) in calls.iter().enumerate() {
            let ended_at = older.ended_at.unwrap_or(evidence.records.quiet_at);
            let during = calls[place + 1..].iter().filter(|newer| {
                newer.session_key != older.session_key
                    && newer.begun_at + HANG_UP_MAX < ended_at
                    && newer.begun_at < older.begun_at + BREAKER_PROBE_MAX
                    && is_known(evidence, newer)
                    && !sent_by_a_zombie(evidence, newer)
                    && !was_harmed(evidence, older)
            });
            found.extend(during.map(|newer| Violation {
                invariant: "I23",
                expected: "behind an open breaker one call is in flight at a time",
                found: format!(
                    "opened at {opened_at}: call {} of {} from {} to {ended_at}, and call {} of {} from {}",
                    older.order, older.caller, older.begun_at, newer.order, newer.caller, newer.begun_at
                ),
            }));
        }
    }
    found
}

/// A call that opens the breaker is no attempt.
pub(super) fn nothing_failed(evidence: &Evidence<'_>) -> Vec<Violation> {
    let turns = evidence.rows.turns.iter();
    let failed = turns.filter(|turn| turn.state == "failed" && turn.error_class.as_deref() == Some("quota"));
    failed
        .map(|turn| Violation {
            invariant: "I23",
            expected: "nothing fails because a provider's limit is used up",
            found: format!("turn {} of {} failed", turn.id, turn.account_id),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::fabricated::{Story, at, provider_call},
        *,
    };
    use crate::records::Fired;

    /// The breaker opened; later a turn of another session and the story's turn call the provider at once.
    fn story() -> Story {
        let mut story = Story::delivered();
        story.records.calls.clear();
        story
            .records
            .heard
            .opened
            .insert("provider.opened:-:default:1".to_owned(), at(10));
        for (order, times) in [(0, (20, 22)), (1, (21, 23))] {
            let end = CallEnd::Failure {
                name: "quota".to_owned(),
            };
            let mut call = provider_call(order, times, end);
            call.idempotency_key = format!("turn-{}:0", order + 1);
            call.session_key = format!("session {order}");
            story.records.calls.push(call);
        }
        let mut other = story.rows.turns[0].clone();
        "turn-2".clone_into(&mut other.id);
        story.rows.turns.push(other);
        story.rows.turns.iter_mut().for_each(|turn| turn.sent_at = Some(at(19)));
        story
    }

    #[test]
    fn two_probes_at_once_are_found() {
        assert!(story().finds(one_probe, "call 0 of delivery-0"));
        let mut story = story();
        story.records.calls[0].ended_at = Some(at(21));
        assert_eq!(story.judge(one_probe), [], "one after the other");
        let mut story = self::story();
        story.rows.turns[0].sent_at = Some(at(12));
        assert_eq!(story.judge(one_probe), [], "its claim may have met it closed");
        let mut story = self::story();
        story.records.calls[1].begun_at = at(26);
        story.records.calls[0].ended_at = Some(at(30));
        assert_eq!(story.judge(one_probe), [], "the time of the first one is over");
    }

    #[test]
    fn a_success_closes_and_a_fault_excuses() {
        let mut story = story();
        let mut good = provider_call(2, (11, 12), CallEnd::Text { text: String::new() });
        "turn-1:0".clone_into(&mut good.idempotency_key);
        story.records.calls.push(good);
        assert_eq!(story.judge(one_probe), []);
        let mut story = self::story();
        story.records.faults.push(Fired {
            kind: "kill".to_owned(),
            target: "delivery-0".to_owned(),
            from: at(20),
            until: at(21),
        });
        assert_eq!(story.judge(one_probe), []);
    }

    #[test]
    fn a_turn_that_failed_for_its_provider_is_found() {
        let mut story = story();
        assert_eq!(story.judge(nothing_failed), []);
        "failed".clone_into(&mut story.rows.turns[0].state);
        story.rows.turns[0].error_class = Some("quota".to_owned());
        assert!(story.finds(nothing_failed, "turn-1"));
    }
}
