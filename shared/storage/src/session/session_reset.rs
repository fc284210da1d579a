//! A person's request to reset a session: without a turn in progress its generation ends at once; else the turn is asked to stop, and
//! the transaction that ends it, delivery's record, ends the generation. The caller holds the session's lock and has found it open.

use contracts::session::SessionStopRequested;
use domain::{ResetRequest, SessionId, StopKind, StopThen, TaskId, TurnId};
use serde_json::json;

use super::{
    session_succeed::{Succession, session_succeed},
    sessions_lock::LockedSession,
    turn_stop::{StopRequest, turn_stop},
};
use crate::{Setting, StorageError, Tx, activity::activity_insert, outbox::Owned};

/// What became of a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// The next generation is open.
    Done(SessionId),
    /// This turn is to end first.
    Stopping(TurnId),
}

/// Of two requests, the later one counts. Relies on the primary key.
pub const RESET_ASK: &str = "
    update session set reset_request = $3::text::jsonb where account_id = $1 and id = $2";

/// `task`: as its client spelled it. Gives messages for the outbox of the same transaction.
pub async fn session_reset(
    tx: &Tx,
    (session, task): (&LockedSession, Option<&TaskId>),
    request: &ResetRequest,
    setting: &Setting<'_>,
) -> Result<(Asked, Vec<Owned>), StorageError> {
    let (asked, messages) = match session.active_turn {
        Some(turn) => (
            Asked::Stopping(turn),
            stop(tx, (session, turn), task, request, setting).await?,
        ),
        None => {
            let reset = Succession::Reset {
                request,
                put_back: &[],
                gate: None,
            };
            let succeeded = session_succeed(tx, &session.name(), reset, setting).await?;
            (Asked::Done(succeeded.next), succeeded.messages)
        }
    };
    if let Some(task) = task {
        let (next, turn) = match asked {
            Asked::Done(next) => (Some(next), None),
            Asked::Stopping(turn) => (None, Some(turn)),
        };
        let detail = json!({"session_id": session.id, "next_session_id": next, "turn_id": turn, "reason": request.reason,
            "queue": request.queue, "in_flight": request.in_flight});
        let of = (&session.account, task);
        activity_insert(tx, of, "session.reset", &request.by, detail, setting.now).await?;
    }
    Ok((asked, messages))
}

async fn stop(
    tx: &Tx,
    (session, turn): (&LockedSession, TurnId),
    task: Option<&TaskId>,
    request: &ResetRequest,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let stop = StopRequest {
        session: session.name(),
        turn: Some(turn),
        kind: StopKind::Reset,
        by: &request.by.name,
        then: StopThen::Continue,
        task,
    };
    let requested = turn_stop(tx, &[stop]).await?;
    let written = serde_json::to_string(request).expect("words and texts serialise");
    let values = [(&session.account).into(), session.id.into(), written.into()];
    tx.execute("ask for a reset", RESET_ASK, values).await?;
    let hint = |requested: SessionStopRequested| setting.message(&requested.message_id(), &requested);
    Ok(requested.into_iter().map(hint).collect())
}
