//! I10: every committed message was published. I15: no lease is held, and no item waits. Checked when the system is idle; the
//! campaign limits the time for that.

use super::{Violation, evidence::Evidence};

/// I10.
pub(super) fn outbox_drained(evidence: &Evidence<'_>) -> Vec<Violation> {
    let rows = evidence.rows.outbox.iter();
    rows.map(|row| Violation {
        invariant: "I10",
        expected: "nothing is left in the outbox",
        found: format!("{} of {}, for {}", row.subject, row.service, row.account_id),
    })
    .collect()
}

/// I15.
pub(super) fn nobody_holds_anything(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for session in &evidence.rows.sessions {
        // One that was closed while it waited for a time keeps the phase; nothing wakes it.
        let rests = session.phase == "idle" || (session.phase == "backoff" && session.closed_at.is_some());
        if !rests || session.queued != 0 || session.lease_owner.is_some() {
            found.push(Violation {
                invariant: "I15",
                expected: "a session comes to rest",
                found: format!(
                    "{} is {} with {} queued, its lease is {}",
                    session.key,
                    session.phase,
                    session.queued,
                    session.lease_owner.as_deref().unwrap_or("no replica's")
                ),
            });
        }
    }
    for turn in &evidence.rows.turns {
        if matches!(turn.state.as_str(), "started" | "calling" | "awaiting_tools") {
            found.push(Violation {
                invariant: "I15",
                expected: "a turn comes to its end",
                found: format!("turn {} of {} is {}", turn.id, turn.account_id, turn.state),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{
        super::{evidence::OutboxRow, fabricated::Story},
        *,
    };

    #[test]
    fn rest_is_rest() {
        assert_eq!(Story::delivered().judge(outbox_drained), []);
        assert_eq!(Story::delivered().judge(nobody_holds_anything), []);
    }

    #[test]
    fn what_was_not_sent_is_found() {
        let mut story = Story::delivered();
        story.rows.outbox.push(OutboxRow {
            account_id: "acme".to_owned(),
            service: "delivery".to_owned(),
            subject: "signalbox.event.acme.T-1.turn.finished".to_owned(),
        });
        assert!(story.finds(outbox_drained, "turn.finished"));
    }

    #[test]
    fn what_is_held_or_under_way_is_found() {
        let mut story = Story::delivered();
        story.rows.sessions[0].lease_owner = Some("replica-1".to_owned());
        assert!(story.finds(nobody_holds_anything, "replica-1"));
        let mut story = Story::delivered();
        story.rows.sessions[0].queued = 1;
        assert!(story.finds(nobody_holds_anything, "1 queued"));
        let mut story = Story::delivered();
        "backoff".clone_into(&mut story.rows.sessions[0].phase);
        assert!(story.finds(nobody_holds_anything, "is backoff"));
        story.rows.sessions[0].closed_at = Some(story.records.quiet_at);
        assert_eq!(story.judge(nobody_holds_anything), []);
        "calling".clone_into(&mut story.rows.turns[0].state);
        assert!(story.finds(nobody_holds_anything, "is calling"));
    }
}
