//! Writes requests to stop the turns in progress of sessions, whose locks the caller holds. A request names one turn and can
//! hit no other. It stays in the session's row until the turn has ended; delivery carries it out.

use contracts::session::SessionStopRequested;
use domain::{AccountId, Generation, SessionId, StopKind, StopThen, TaskId, TurnId};
use sea_orm::FromQueryResult;
use uuid::Uuid;

use super::SessionName;
use crate::{
    StorageError, Tx,
    statement::{column, pairs},
};

#[derive(Clone, Debug)]
pub struct StopRequest<'a> {
    pub session: SessionName,
    /// This turn only; none: the turn in progress.
    pub turn: Option<TurnId>,
    pub kind: StopKind,
    /// The name of who asks.
    pub by: &'a str,
    pub then: StopThen,
    /// A steer ends a turn on its own task only, or one without a task if it has none; a cancel and a handover those of
    /// its task. As its
    /// client spelled it.
    pub task: Option<&'a TaskId>,
}

/// The later of two requests decides what follows. A turn that waits is due at once. Relies on the primary keys.
pub const TURN_STOP: &str = "
    update session s set stop_turn_id = s.active_turn_id, stop_kind = a.kind, stop_by = a.by, stop_at = now(), stop_then = a.after,
        wake_at = case when s.phase in ('waiting', 'backoff') then now() else s.wake_at end
    from unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[])
        as a (account_id, id, turn_id, kind, by, after, task_id)
    where s.account_id = any (array[a.account_id]) and s.id = a.id
      and case a.turn_id when '00000000-0000-0000-0000-000000000000' then s.active_turn_id is not null else s.active_turn_id = a.turn_id end
      and (a.kind not in ('steered', 'cancelled', 'handed_over') or coalesce((
          select coalesce(t.task_id, '') from turn t where t.account_id = a.account_id and t.id = s.active_turn_id) = a.task_id, false))
    returning s.account_id, s.id, s.key, s.generation, s.stop_turn_id, s.stop_kind";

#[derive(FromQueryResult)]
struct Row {
    account_id: AccountId,
    id: SessionId,
    key: String,
    generation: Generation,
    stop_turn_id: TurnId,
    stop_kind: StopKind,
}

/// Returns the hints for delivery, of the turns that are to end. A session may occur once.
pub async fn turn_stop(tx: &Tx, asked: &[StopRequest<'_>]) -> Result<Vec<SessionStopRequested>, StorageError> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let task = |task: Option<&TaskId>| task.map_or_else(String::new, |task| task.key().into());
    let values = [
        column(asked, |asked| asked.session.0.clone()),
        column(asked, |asked| asked.session.1),
        column(asked, |asked| asked.turn.map_or(Uuid::nil(), TurnId::uuid)),
        column(asked, |asked| asked.kind),
        column(asked, |asked| asked.by.to_owned()),
        column(asked, |asked| asked.then),
        column(asked, |asked| task(asked.task)),
    ];
    let rows: Vec<Row> = tx.rows("ask turns to stop", TURN_STOP, values).await?;
    let message = |row: Row| {
        let of_session = |asked: &&StopRequest<'_>| asked.session.0 == row.account_id && asked.session.1 == row.id;
        SessionStopRequested {
            task: asked.iter().find(of_session).and_then(|asked| asked.task).cloned(),
            account: row.account_id,
            session_id: row.id,
            session_key: row.key,
            generation: row.generation,
            turn_id: row.stop_turn_id,
            kind: row.stop_kind,
        }
    };
    Ok(rows.into_iter().map(message).collect())
}

/// Relies on the primary key.
pub const STOPS_CONTINUE: &str = "
    update session s set stop_then = 'continue'
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    where s.account_id = any (array[w.account_id]) and s.id = w.id and s.stop_turn_id is not null";

/// What waits behind turns that are to end goes on after them, whatever was asked before.
pub async fn stops_continue(tx: &Tx, sessions: &[SessionName]) -> Result<(), StorageError> {
    if sessions.is_empty() {
        return Ok(());
    }
    let (accounts, ids) = pairs(sessions);
    let values = [accounts.into(), ids.into()];
    tx.execute("let queues go on after a stop", STOPS_CONTINUE, values)
        .await
        .map(|_| ())
}
