//! Decides what to do with a woken session. Pure; the caller holds the row lock. The table is [`admit`].
//!
//! | phase | and | then |
//! |---|---|---|
//! | idle | open, something queued | start a turn |
//! | idle | else | leave |
//! | backoff | due, no turn | as idle |
//! | backoff | due, a turn | resume it |
//! | waiting | all results are recorded, the wait was too long, or the turn is to end | resume it |
//! | waiting | the next missing result was not requested, or is due | request it |
//! | running | the holder's lease has expired | resume its turn, or as idle |
//! | any | else | leave |

use domain::{SessionPhase, TurnState};
use storage::session::sessions_lock::SessionFacts;

use crate::store::{
    claim::OpenTurn,
    journal::{NO_PLACE, noted},
};

/// The facts about the turn in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnFacts {
    pub state: TurnState,
    /// The place of the call of the last answer that is due ([`noted`]); [`NO_PLACE`] where all have their results. Calls of
    /// earlier answers no longer count: the agent was told that their results are missing.
    pub next: i32,
    /// The turn has waited for results longer than any tool may take.
    pub awaited_too_long: bool,
}

impl From<&OpenTurn> for TurnFacts {
    fn from(turn: &OpenTurn) -> TurnFacts {
        TurnFacts {
            state: turn.state,
            next: noted(&turn.due()).unwrap_or(NO_PLACE),
            awaited_too_long: turn.awaited_too_long(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Start a turn with the next item of the queue.
    Start,
    /// Resume the turn in progress.
    Resume,
    /// Request the next missing result from the tool-gateway, without taking the lease.
    Ask,
    /// Leave the session: another replica holds it, or it has no work.
    Leave,
}

pub fn admit(session: SessionFacts, turn: Option<TurnFacts>) -> Admission {
    let start = if !session.closed && session.queued > 0 {
        Admission::Start
    } else {
        Admission::Leave
    };
    match session.phase {
        SessionPhase::Idle => start,
        SessionPhase::Backoff => match turn {
            // The clock may have been set back since the turn was asked to stop.
            Some(_) if session.stopping => Admission::Resume,
            _ if !session.due => Admission::Leave,
            Some(_) => Admission::Resume,
            None => start,
        },
        SessionPhase::Waiting => match turn {
            Some(turn) if turn.next == NO_PLACE || turn.awaited_too_long || session.stopping => Admission::Resume,
            Some(turn) if session.due || session.asked < turn.next => Admission::Ask,
            Some(_) => Admission::Leave,
            // The code never writes a waiting session without a turn. If one is stored nevertheless, it must not wait
            // for ever.
            None => start,
        },
        SessionPhase::Running => match turn {
            _ if !session.lease_dead => Admission::Leave,
            Some(_) => Admission::Resume,
            None => start,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: SessionFacts = SessionFacts {
        phase: SessionPhase::Idle,
        closed: false,
        queued: 1,
        due: false,
        asked: 0,
        stopping: false,
        lease_dead: false,
    };
    const WAITING: TurnFacts = TurnFacts {
        state: TurnState::AwaitingTools,
        next: 2,
        awaited_too_long: false,
    };

    #[test]
    fn admits_by_the_table() {
        let check = |session, turn, expected| assert_eq!(admit(session, turn), expected, "{session:?} {turn:?}");
        check(IDLE, None, Admission::Start);
        check(SessionFacts { queued: 0, ..IDLE }, None, Admission::Leave);
        check(SessionFacts { closed: true, ..IDLE }, None, Admission::Leave);

        let backoff = SessionFacts {
            phase: SessionPhase::Backoff,
            ..IDLE
        };
        let started = TurnFacts {
            state: TurnState::Started,
            next: NO_PLACE,
            awaited_too_long: false,
        };
        check(backoff, Some(started), Admission::Leave);
        check(SessionFacts { due: true, ..backoff }, Some(started), Admission::Resume);
        check(
            SessionFacts {
                due: true,
                closed: true,
                ..backoff
            },
            Some(started),
            Admission::Resume,
        );
        check(SessionFacts { due: true, ..backoff }, None, Admission::Start);
        check(
            SessionFacts {
                due: true,
                queued: 0,
                ..backoff
            },
            None,
            Admission::Leave,
        );

        let waiting = SessionFacts {
            phase: SessionPhase::Waiting,
            asked: 2,
            ..IDLE
        };
        check(waiting, Some(WAITING), Admission::Leave);
        check(SessionFacts { due: true, ..waiting }, Some(WAITING), Admission::Ask);
        check(SessionFacts { asked: 1, ..waiting }, Some(WAITING), Admission::Ask);
        check(
            waiting,
            Some(TurnFacts {
                next: NO_PLACE,
                ..WAITING
            }),
            Admission::Resume,
        );
        let stopping = SessionFacts {
            stopping: true,
            ..waiting
        };
        check(stopping, Some(WAITING), Admission::Resume);
        check(
            waiting,
            Some(TurnFacts {
                awaited_too_long: true,
                ..WAITING
            }),
            Admission::Resume,
        );

        let running = SessionFacts {
            phase: SessionPhase::Running,
            ..IDLE
        };
        let calling = TurnFacts {
            state: TurnState::Calling,
            ..started
        };
        check(running, Some(calling), Admission::Leave);
        check(
            SessionFacts {
                lease_dead: true,
                ..running
            },
            Some(calling),
            Admission::Resume,
        );
        check(
            SessionFacts {
                lease_dead: true,
                ..running
            },
            None,
            Admission::Start,
        );
    }
}
