//! I22: a timer fires once, as one item, and not after the end of its session. Always, except that a timer may wait before the end.

use super::{
    Violation,
    evidence::{Evidence, OnceRow},
    questions::{items_are_named, left},
    sessions::LOCKS_WAIT_MAX,
};

fn broken(expected: &'static str, timer: &OnceRow, found: &str) -> Violation {
    Violation {
        invariant: "I22",
        expected,
        found: format!("timer {} of {} {found}", timer.id, timer.account_id),
    }
}

pub(super) fn fired_once(evidence: &Evidence<'_>) -> Vec<Violation> {
    items_are_named(evidence, evidence.rows.timers.iter(), "timer", "I22")
}

/// The end of a session clears its timers.
pub(super) fn none_after_the_end(evidence: &Evidence<'_>) -> Vec<Violation> {
    let waiting = left(evidence, &evidence.rows.timers, "waiting");
    let waiting = waiting.map(|timer| broken("a closed session has no timers", timer, "waits"));
    let fired = left(evidence, &evidence.rows.timers, "fired").filter_map(|timer| {
        let session = (timer.account_id.as_str(), timer.session_id.as_deref()?);
        let closed_at = evidence.sessions.get(&session)?.closed_at?;
        let fired_at = timer.ended_at.filter(|at| *at > closed_at + LOCKS_WAIT_MAX)?;
        let found = format!("fired at {fired_at}, and its session was closed at {closed_at}");
        Some(broken("a timer fires before the end of its session", timer, &found))
    });
    waiting.chain(fired).collect()
}

/// When the system is idle: the campaign has made all due.
pub(super) fn none_waits(evidence: &Evidence<'_>) -> Vec<Violation> {
    let waiting = evidence.rows.timers.iter().filter(|timer| timer.state == "waiting");
    waiting
        .map(|timer| broken("a timer that is due fires in the end", timer, "waits"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::fabricated::{Story, at},
        *,
    };

    /// A timer that has fired.
    fn story() -> Story {
        let mut story = Story::delivered();
        story.rows.timers.push(OnceRow {
            account_id: "acme".to_owned(),
            id: "timer-1".to_owned(),
            state: "fired".to_owned(),
            session_id: Some("session-1".to_owned()),
            kind: "check_later".to_owned(),
            task_id: None,
            verdict: None,
            tool_call: None,
            text: None,
            notification_id: Some("n-2".to_owned()),
            ended_at: Some(at(30)),
        });
        let mut item = story.rows.notifications[0].clone();
        (item.id, item.kind, item.of) = ("n-2".to_owned(), "timer".to_owned(), Some("timer-1".to_owned()));
        story.rows.notifications.push(item);
        story
    }

    #[test]
    fn one_firing_is_fine() {
        for check in [fired_once, none_after_the_end, none_waits] {
            assert_eq!(story().judge(check), []);
        }
    }

    #[test]
    fn a_timer_that_fired_twice_or_not_at_all_is_found() {
        let mut story = story();
        let mut second = story.rows.notifications[1].clone();
        "n-3".clone_into(&mut second.id);
        story.rows.notifications.push(second);
        assert!(story.finds(fired_once, "n-3"));
        story.rows.notifications.truncate(1);
        assert!(story.finds(fired_once, "names Some(\"n-2\")"));
        "waiting".clone_into(&mut story.rows.timers[0].state);
        assert!(story.finds(none_waits, "timer-1"));
    }

    #[test]
    fn a_timer_of_a_closed_session_is_found() {
        let mut story = story();
        story.rows.sessions[0].closed_at = Some(at(9));
        assert!(story.finds(none_after_the_end, "fired at"));
        story.rows.sessions[0].closed_at = Some(at(30));
        assert_eq!(story.judge(none_after_the_end), [], "it had fired");
        "waiting".clone_into(&mut story.rows.timers[0].state);
        assert!(story.finds(none_after_the_end, "waits"));
    }
}
