//! Chooses the session of a notification: the active one, or the next generation. Pure. One function serves every kind
//! of work (S1); the account's `session_scope` is an input of it and not a second path (S14).

use contracts::notification::{Refusal, RefusalReason};
use domain::Generation;
use storage::session::sessions_lock::ActiveSession;

/// The state of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Active(ActiveSession),
    /// No session is active; the newest generation.
    Closed(Generation),
    Never,
    /// Its agent was removed after the facts were read.
    AgentRemoved,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolution {
    Reuse(ActiveSession),
    OpenNext(Generation),
    Refuse(Refusal),
}

pub fn resolve(found: Found) -> Resolution {
    match found {
        Found::Active(session) => Resolution::Reuse(session),
        Found::Closed(newest) => Resolution::OpenNext(newest.next()),
        Found::Never => Resolution::OpenNext(Generation::FIRST),
        Found::AgentRemoved => Resolution::Refuse(Refusal::new(
            RefusalReason::UnknownAgent,
            "the agent was removed while its notification was read",
        )),
    }
}

/// How a session was found, for logs and counters (S13).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Finding {
    Created,
    Reused,
    Reopened,
}

impl Finding {
    pub fn of_opened(generation: Generation) -> Finding {
        if generation == Generation::FIRST {
            Finding::Created
        } else {
            Finding::Reopened
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Reused => "reused",
            Self::Reopened => "reopened",
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::SessionId;

    use super::*;

    #[test]
    fn the_active_one_or_the_next() {
        let session = ActiveSession {
            id: SessionId(uuid::Uuid::nil()),
            generation: Generation(4),
            queue_tail: 7,
            queued: 0,
            rests: true,
        };
        let check = |found, expected| assert_eq!(resolve(found), expected);
        check(Found::Active(session), Resolution::Reuse(session));
        check(Found::Closed(Generation(4)), Resolution::OpenNext(Generation(5)));
        check(Found::Never, Resolution::OpenNext(Generation(1)));
        assert!(
            matches!(resolve(Found::AgentRemoved), Resolution::Refuse(refusal) if refusal.reason == RefusalReason::UnknownAgent)
        );
        assert_eq!(Finding::of_opened(Generation(1)), Finding::Created);
        assert_eq!(Finding::of_opened(Generation(2)), Finding::Reopened);
    }
}
