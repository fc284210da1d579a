//! Chooses the session of a notification: the active one, or the next generation. Pure. One function serves every kind
//! of work (S1); the account's `session_scope` is an input of it and not a second path (S14).

use contracts::notification::{Refusal, RefusalReason};
use domain::{Generation, SessionId, SessionKind};
use storage::session::{sessions_lock::ActiveSession, sessions_open::Newest};

/// The state of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Active(ActiveSession),
    /// No session is active.
    Closed(Newest),
    /// Its agent, or the orchestrator's person, was removed after the facts were read.
    Removed,
}

/// The session of a conversation: an active one, locked until the transaction ends, or one to open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResolvedSession {
    /// As it was before this batch.
    pub session: ActiveSession,
    pub finding: Finding,
    /// To be opened only by an item that may open it again: its task has ended.
    pub ended: bool,
}

impl ResolvedSession {
    pub fn waiting(&self) -> u32 {
        self.session.queued.unsigned_abs()
    }
}

/// `fresh` is the id of a session to open.
pub fn resolve(kind: SessionKind, found: Found, fresh: SessionId) -> Result<ResolvedSession, Refusal> {
    let newest = match found {
        Found::Active(session) => {
            return Ok(ResolvedSession {
                session,
                finding: Finding::Reused,
                ended: false,
            });
        }
        Found::Closed(newest) => newest,
        Found::Removed => {
            let (reason, who) = match kind {
                SessionKind::Orchestrator => (RefusalReason::UnknownUser, "the person"),
                SessionKind::Guest => (RefusalReason::UnknownUser, "the person, the guest or the way to it"),
                SessionKind::Task | SessionKind::System | SessionKind::Branch | SessionKind::Replay => {
                    (RefusalReason::UnknownAgent, "the agent")
                }
            };
            return Err(Refusal::new(
                reason,
                format!("{who} was removed while the notification was read"),
            ));
        }
    };
    let generation = newest.generation.map_or(Generation::FIRST, Generation::next);
    let session = ActiveSession {
        id: fresh,
        generation,
        queue_tail: 0,
        queued: 0,
        rests: true,
        gate: None,
        active_turn: None,
        will_hold: false,
    };
    Ok(ResolvedSession {
        session,
        finding: match generation {
            Generation::FIRST => Finding::Created,
            _ => Finding::Reopened,
        },
        ended: newest.ended,
    })
}

/// How a session was found, for logs and counters (S13).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Finding {
    Created,
    Reused,
    Reopened,
}

impl Finding {
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
    use super::*;

    #[test]
    fn the_active_one_or_the_next() {
        let fresh = SessionId(uuid::Uuid::from_u128(7));
        let active = ActiveSession {
            id: SessionId(uuid::Uuid::nil()),
            generation: Generation(4),
            queue_tail: 7,
            queued: 0,
            rests: true,
            gate: None,
            active_turn: None,
            will_hold: false,
        };
        let reused = resolve(SessionKind::Task, Found::Active(active), fresh).unwrap();
        assert_eq!((reused.session, reused.finding), (active, Finding::Reused));
        let closed = |generation: Option<i32>, ended| {
            Found::Closed(Newest {
                generation: generation.map(Generation),
                ended,
            })
        };
        for (found, generation, finding, ended) in [
            (closed(Some(4), true), 5, Finding::Reopened, true),
            (closed(Some(4), false), 5, Finding::Reopened, false),
            (closed(None, false), 1, Finding::Created, false),
        ] {
            let opened = resolve(SessionKind::Task, found, fresh).unwrap();
            assert_eq!(
                (opened.session.id, opened.session.generation),
                (fresh, Generation(generation))
            );
            assert_eq!(
                (opened.finding, opened.session.queue_tail, opened.session.rests),
                (finding, 0, true)
            );
            assert_eq!(opened.ended, ended);
        }
        for (kind, reason) in [
            (SessionKind::Task, RefusalReason::UnknownAgent),
            (SessionKind::Orchestrator, RefusalReason::UnknownUser),
        ] {
            assert_eq!(resolve(kind, Found::Removed, fresh).unwrap_err().reason, reason);
        }
    }
}
