//! I28: a generation ends by a reset only if somebody asked for it, and with all that the reset cancels; the next one takes over no
//! thread of its provider. A reset that was accepted is carried out. Always, except the last.

use domain::SESSION_RESET;

use super::{
    Violation,
    evidence::{Evidence, SessionRow},
};
use crate::records::{Aim, Offered};

fn broken(expected: &'static str, found: String) -> Violation {
    Violation {
        invariant: "I28",
        expected,
        found,
    }
}

/// The resets that were sent to a session.
pub(super) fn resets<'a>(evidence: &Evidence<'a>, account: &str, session: &str) -> impl Iterator<Item = &'a Aim> {
    let records = evidence.records;
    let (account, session) = (account.to_owned(), session.to_owned());
    records.aims.iter().filter(move |aim| {
        let offer = &records.offers[aim.offer];
        matches!(offer.what, Offered::Reset { .. }) && offer.account == account && aim.target == session
    })
}

/// Whether work goes on in the next generation after the end of this one.
pub(super) fn goes_on(session: &SessionRow) -> bool {
    matches!(session.close_reason.as_deref(), Some("reset" | "rotated"))
}

/// Whether two sessions are generations of one conversation, one after the other without an end of the work between.
pub(super) fn is_one_line(evidence: &Evidence<'_>, account: &str, [one, other]: [&str; 2]) -> bool {
    let found = [one, other].map(|id| evidence.sessions.get(&(account, id)).copied());
    let [Some(one), Some(other)] = found else {
        return false;
    };
    let branch = |row: &SessionRow| row.origin().map(str::to_owned);
    let of = |row: &SessionRow| (row.kind.clone(), branch(row), row.task_id.clone(), row.agent_id.clone());
    let (first, last) = match one.generation <= other.generation {
        true => (one, other),
        false => (other, one),
    };
    let between = evidence.rows.sessions.iter().filter(|row| {
        let is_between = (first.generation..last.generation).contains(&row.generation);
        row.account_id == account && of(row) == of(first) && is_between
    });
    of(first) == of(last) && between.into_iter().all(goes_on)
}

/// Always.
pub(super) fn resets_were_asked(evidence: &Evidence<'_>) -> Vec<Violation> {
    let sessions = evidence.rows.sessions.iter();
    let reset = sessions.filter(|session| session.close_reason.as_deref() == Some("reset"));
    let mut found: Vec<Violation> = reset
        .filter(|session| resets(evidence, &session.account_id, &session.id).next().is_none())
        .map(|session| broken("a session is reset only on request", session.key.clone()))
        .collect();
    let cancelled = evidence.rows.notifications.iter();
    let cancelled = cancelled.filter(|row| row.reason.as_deref() == Some(SESSION_RESET));
    found.extend(cancelled.filter_map(|row| {
        let session = (row.account_id.as_str(), row.session_id.as_deref().unwrap_or_default());
        let reason = evidence
            .sessions
            .get(&session)
            .and_then(|session| session.close_reason.as_deref());
        // Its turn was stopped for a reset, and its task closed before the turn had ended.
        let was_in_flight = || {
            let mut turns = evidence
                .rows
                .turns
                .iter()
                .filter(|turn| turn.account_id == row.account_id);
            turns.any(|turn| Some(&turn.id) == row.turn_id.as_ref() && turn.error.as_deref() == Some(SESSION_RESET))
        };
        let is_right = row.state == "cancelled" && (reason == Some("reset") || reason.is_some() && was_in_flight());
        let what = "a reset cancels what was in the generation that it ended, or in the turn that it stopped";
        (!is_right).then(|| {
            broken(
                what,
                format!(
                    "notification {} of {} is {}, its session {reason:?}",
                    row.id, row.account_id, row.state
                ),
            )
        })
    }));
    found
}

/// Always.
pub(super) fn threads_end_with_generations(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for session in &evidence.rows.sessions {
        if session.closed_at.is_some() && session.provider_thread.is_some() {
            found.push(broken("a closed generation keeps no thread", session.key.clone()));
        }
        let name = (session.account_id.as_str(), session.id.as_str());
        let first = evidence.turns_of.get(&name).and_then(|turns| turns.first());
        if first.is_some_and(|turn| turn.number == 1 && !turn.opens_thread) {
            let what = "the first turn of a generation begins a thread";
            found.push(broken(
                what,
                format!("{}: its first turn went on in another's", session.key),
            ));
        }
    }
    found
}

/// When the system is idle: its turn has ended, and the generation with it.
pub(super) fn resets_are_carried_out(evidence: &Evidence<'_>) -> Vec<Violation> {
    let open = evidence
        .rows
        .sessions
        .iter()
        .filter(|session| session.closed_at.is_none());
    let asked = open.filter(|session| {
        resets(evidence, &session.account_id, &session.id).any(|aim| evidence.records.offers[aim.offer].is_accepted())
    });
    asked
        .map(|session| {
            broken(
                "a session whose reset was accepted is closed in the end",
                session.key.clone(),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use domain::{ResetInFlight, ResetQueue};

    use super::{
        super::fabricated::{Story, at},
        *,
    };

    /// A session that offer 1 has reset, and the next generation.
    fn story() -> Story {
        let mut story = Story::delivered();
        let mut offer = story.records.offers[0].clone();
        offer.number = 1;
        offer.what = Offered::Reset {
            task: "T-1".to_owned(),
            agent: "coder".to_owned(),
            queue: ResetQueue::Cancel,
            in_flight: ResetInFlight::Cancel,
            after_ms: 0,
        };
        story.records.offers.push(offer);
        story.records.aims.push(Aim {
            offer: 1,
            target: "session-1".to_owned(),
            named: None,
        });
        let mut item = story.rows.notifications[0].clone();
        (item.id, item.state, item.turn_id) = ("n-2".to_owned(), "cancelled".to_owned(), None);
        item.reason = Some(SESSION_RESET.to_owned());
        story.rows.notifications.push(item);
        let mut next = story.rows.sessions[0].clone();
        (next.id, next.generation, next.opened_at) = ("session-2".to_owned(), 2, at(9));
        next.key = next.key.replace(":v1", ":v2");
        story.rows.sessions.push(next);
        let old = &mut story.rows.sessions[0];
        (old.closed_at, old.close_reason) = (Some(at(9)), Some("reset".to_owned()));
        story
    }

    const ALL: [super::super::Check; 3] = [resets_were_asked, threads_end_with_generations, resets_are_carried_out];

    #[test]
    fn a_reset_that_was_asked_for_is_fine() {
        for story in [Story::delivered(), story()] {
            for check in ALL {
                assert_eq!(story.judge(check), []);
            }
        }
    }

    #[test]
    fn a_reset_that_nobody_asked_for_is_found() {
        let mut story = story();
        story.records.aims.clear();
        assert!(story.finds(resets_were_asked, ":v1"));
        let mut story = self::story();
        story.rows.notifications[1].session_id = Some("session-2".to_owned());
        assert!(story.finds(resets_were_asked, "notification n-2"));
    }

    /// The turn that the reset stopped had not ended when its task closed.
    #[test]
    fn a_task_that_closes_before_the_stopped_turn_has_ended_is_fine() {
        let mut story = story();
        story.rows.sessions[0].close_reason = Some("task_done".to_owned());
        assert!(story.finds(resets_were_asked, "notification n-2"));
        story.rows.notifications[1].turn_id = Some(story.rows.turns[0].id.clone());
        assert!(story.finds(resets_were_asked, "notification n-2"));
        story.rows.turns[0].error = Some(SESSION_RESET.to_owned());
        assert_eq!(story.judge(resets_were_asked), []);
    }

    #[test]
    fn a_thread_that_outlives_its_generation_is_found() {
        let mut story = story();
        story.rows.sessions[0].provider_thread = Some("resp_1".to_owned());
        assert!(story.finds(threads_end_with_generations, ":v1"));
        let mut story = self::story();
        let mut turn = story.rows.turns[0].clone();
        (turn.id, turn.session_id, turn.generation) = ("turn-2".to_owned(), "session-2".to_owned(), 2);
        story.rows.turns.push(turn);
        assert_eq!(story.judge(threads_end_with_generations), []);
        story.rows.turns[1].opens_thread = false;
        assert!(story.finds(threads_end_with_generations, ":v2"));
    }

    #[test]
    fn a_reset_that_was_forgotten_is_found() {
        let mut story = story();
        story.rows.sessions.truncate(1);
        (story.rows.sessions[0].closed_at, story.rows.sessions[0].close_reason) = (None, None);
        assert!(story.finds(resets_are_carried_out, ":v1"));
    }

    #[test]
    fn a_line_ends_with_the_work() {
        let mut story = story();
        let is_one = |story: &Story| {
            let evidence = Evidence::new(&story.records, &story.rows, true);
            is_one_line(&evidence, "acme", ["session-2", "session-1"])
        };
        assert!(is_one(&story));
        story.rows.sessions[0].close_reason = Some("task_done".to_owned());
        assert!(!is_one(&story));
    }
}
