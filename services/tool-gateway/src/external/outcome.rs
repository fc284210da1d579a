//! What becomes of an external call that did not bring an answer. Pure.
//!
//! | what happened | `read` | `once` |
//! |---|---|---|
//! | nothing was sent: refused connection, 429 or 503 with a short `Retry-After` | again | again |
//! | sent, and lost: a broken connection, a body that was cut | again | failed |
//! | its runner is gone | again | unknown |
//!
//! Again: three times in all, within the call's time. Unknown: after a grace, in which the runner may come back.

use std::time::Duration;

use crate::models::exchange::{Lost, RETRY_AFTER_MAX};

/// How often a call is made, at most.
pub(crate) const TRIES_MAX: i32 = 3;
/// Before a call is made again of which the other side said no time.
const PAUSE: Duration = Duration::from_millis(200);

/// What asking twice means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It changes nothing.
    Read,
    /// It costs, or changes something: sent at most once.
    Once,
}

impl Kind {
    /// By the tool's name. Making images is paid for.
    pub(crate) fn of(tool: &str) -> Kind {
        match tool {
            "ask_model" | "read_media" => Kind::Read,
            _ => Kind::Once,
        }
    }
}

/// The wait until the call is made again; none: it is not.
pub(crate) fn again(kind: Kind, lost: Lost, tries: i32, left: Duration) -> Option<Duration> {
    let wait = match (lost, kind) {
        (Lost::Unsent(wait), _) => wait.unwrap_or(PAUSE),
        (Lost::Sent, Kind::Read) => PAUSE,
        (Lost::Sent, Kind::Once) => return None,
    };
    (tries < TRIES_MAX && wait <= RETRY_AFTER_MAX && wait < left).then_some(wait)
}

/// Whether a call is made again whose runner is gone; else its outcome is unknown.
pub(crate) fn runs_again(kind: Kind, tries: i32, has_time: bool) -> bool {
    match kind {
        Kind::Read => tries < TRIES_MAX && has_time,
        Kind::Once => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_call_is_made_again_by_its_kind() {
        let minute = Duration::from_secs(60);
        let check = |kind, lost, tries, left, expected| {
            assert_eq!(
                again(kind, lost, tries, left),
                expected,
                "{kind:?} {lost:?} {tries} {left:?}"
            );
        };
        let after = |seconds| Lost::Unsent(Some(Duration::from_secs(seconds)));
        for kind in [Kind::Read, Kind::Once] {
            check(kind, Lost::Unsent(None), 1, minute, Some(PAUSE));
            check(kind, after(5), 2, minute, Some(Duration::from_secs(5)));
            check(kind, after(6), 1, minute, None);
            check(kind, after(5), 1, Duration::from_secs(5), None);
            check(kind, Lost::Unsent(None), 3, minute, None);
        }
        check(Kind::Read, Lost::Sent, 1, minute, Some(PAUSE));
        check(Kind::Read, Lost::Sent, 3, minute, None);
        check(Kind::Read, Lost::Sent, 1, Duration::ZERO, None);
        check(Kind::Once, Lost::Sent, 1, minute, None);

        assert!(runs_again(Kind::Read, 1, true) && runs_again(Kind::Read, 2, true));
        assert!(!runs_again(Kind::Read, 3, true) && !runs_again(Kind::Read, 1, false));
        assert!(!runs_again(Kind::Once, 1, true));
    }

    #[test]
    fn every_external_tool_has_its_kind() {
        let kinds: Vec<(&str, Kind)> = contracts::tools::all()
            .iter()
            .filter(|tool| contracts::tools::is_external(tool.name))
            .map(|tool| (tool.name, Kind::of(tool.name)))
            .collect();
        let expected = [
            ("ask_model", Kind::Read),
            ("read_media", Kind::Read),
            ("generate_media", Kind::Once),
        ];
        assert_eq!(kinds, expected);
    }
}
