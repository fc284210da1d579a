//! Parks sessions behind a gate, and unparks them. A parked session is in phase `backoff` without a turn; it uses no attempt and
//! holds no lease. The caller holds the sessions' locks.

use contracts::{
    event::{Event, SessionGated},
    session::SessionResolved,
};
use domain::{AccountId, AgentId, Gate, Generation, SessionId, SessionPhase, TaskId};
use sea_orm::FromQueryResult;
use time::OffsetDateTime;
use uuid::Uuid;

use super::SessionName;
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    statement::{column, pairs},
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Park {
    pub session: SessionName,
    /// As the state table says.
    pub phase: SessionPhase,
    pub gate: Gate,
    /// What keeps it, as the gate says: a hold, a question, a provider.
    pub gate_ref: Option<Uuid>,
    /// When to look again; none: somebody opens the gate.
    pub wake_ms: Option<i64>,
}

/// The same gate again counts a look. Relies on the primary key.
pub const SESSIONS_PARK: &str = "
    update session s set phase = p.phase, lease_owner = null, gate = p.gate,
        gate_ref = nullif(p.gate_ref, '00000000-0000-0000-0000-000000000000'), wake_at = now() + nullif(p.wake_ms, 0) * interval '1 millisecond',
        gated_since = case when s.gate = p.gate then s.gated_since else now() end,
        gate_looks = case when s.gate = p.gate then s.gate_looks + 1 else 0 end
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::uuid[])
        as p (account_id, id, phase, gate, wake_ms, gate_ref)
    where s.account_id = any (array[p.account_id]) and s.id = p.id";

pub async fn sessions_park(tx: &Tx, parks: &[Park]) -> Result<(), StorageError> {
    if parks.is_empty() {
        return Ok(());
    }
    let values = [
        column(parks, |park| park.session.0.clone()),
        column(parks, |park| park.session.1),
        column(parks, |park| park.phase),
        column(parks, |park| park.gate),
        column(parks, |park| park.wake_ms.unwrap_or(0)),
        column(parks, |park| park.gate_ref.unwrap_or_default()),
    ];
    tx.execute("park sessions", SESSIONS_PARK, values).await.map(|_| ())
}

/// A version without gates may have begun a turn. Turns without progress are counted anew. Relies on the primary key.
pub const SESSIONS_UNPARK: &str = "
    update session s set gate = null, gate_ref = null, gated_since = null, gate_looks = 0,
        streak = case s.gate when 'no_progress' then 0 else s.streak end,
        streak_key = case s.gate when 'no_progress' then null else s.streak_key end,
        streak_since = case s.gate when 'no_progress' then null else s.streak_since end,
        wake_at = case when s.active_turn_id is null then now() else s.wake_at end
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    where s.account_id = any (array[w.account_id]) and s.id = w.id and s.gate is not null";

/// Their queues may start at once. The caller wakes delivery.
pub async fn sessions_unpark(tx: &Tx, sessions: &[SessionName]) -> Result<(), StorageError> {
    if sessions.is_empty() {
        return Ok(());
    }
    let (accounts, ids) = pairs(sessions);
    let values = [accounts.into(), ids.into()];
    tx.execute("unpark sessions", SESSIONS_UNPARK, values).await.map(|_| ())
}

/// What a person has stopped has nothing to ask: only a person goes on. Relies on the primary key.
pub const SESSIONS_LOOK: &str = "
    update session s set wake_at = now()
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    where s.account_id = any (array[w.account_id]) and s.id = w.id and s.gate <> 'stopped' and s.active_turn_id is null";

/// Their gates are asked again: another item is first. The caller wakes delivery.
pub async fn sessions_look(tx: &Tx, sessions: &[SessionName]) -> Result<(), StorageError> {
    if sessions.is_empty() {
        return Ok(());
    }
    let (accounts, ids) = pairs(sessions);
    let values = [accounts.into(), ids.into()];
    tx.execute("look at parked sessions", SESSIONS_LOOK, values)
        .await
        .map(|_| ())
}

/// When a decided call is requested again, if the message that says so was lost.
const DECIDED_AGAIN_S: f64 = 30.0;

/// Relies on the primary key.
pub const CALL_AWAITS: &str = "
    update session s set wake_at = least(s.wake_at, now() + $3 * interval '1 second')
    where s.account_id = $1 and s.id = $2 and s.phase = 'waiting' and s.closed_at is null";

/// A call that the session's turn waits for is decided. The caller holds the session's lock.
pub async fn call_awaits(tx: &Tx, (account, session): &SessionName) -> Result<(), StorageError> {
    let values = [account.into(), (*session).into(), DECIDED_AGAIN_S.into()];
    tx.execute("look at a decided call", CALL_AWAITS, values)
        .await
        .map(|_| ())
}

#[derive(FromQueryResult)]
struct ParkedRow {
    id: SessionId,
    key: String,
    generation: Generation,
    agent_id: Option<AgentId>,
    queued: i32,
    queue_tail: i64,
    gated_since: Option<OffsetDateTime>,
    /// As its client spelled it.
    task: Option<TaskId>,
}

/// Sessions that a hold, a question or a provider keeps. Relies on index session_gated, whose order is requested, and on the
/// primary key of tasks. The array has one value: with an equality, the primary key has the same order, and reads all sessions.
pub const PARKED_BY: &str = "
    select s.id, s.key, s.generation, s.agent_id, s.queued, s.queue_tail, s.gated_since, k.display_id as task
    from (select * from session s where s.account_id = $1 and s.gate_ref = any (array[$2::uuid])
          order by s.gate_ref, s.account_id, s.id limit $3 for no key update skip locked) s
    left join task k on k.account_id = any (array[s.account_id]) and k.id = s.task_id";

/// Relies on index session_gated.
pub const IS_PARKING: &str = "select true from session s where s.account_id = $1 and s.gate_ref = $2 limit 1";

/// Locks and unparks sessions of the account that this keeps, at most so many; those that are locked are left. Gives how many,
/// and their events and wake-ups.
pub async fn sessions_open(
    tx: &Tx,
    account: &AccountId,
    (gate, gate_ref): (Gate, Uuid),
    sessions_max: i64,
    setting: &Setting<'_>,
) -> Result<(usize, Vec<Owned>), StorageError> {
    let values = [account.into(), gate_ref.into(), sessions_max.into()];
    let parked: Vec<ParkedRow> = tx.rows("find parked sessions", PARKED_BY, values).await?;
    let names: Vec<SessionName> = parked.iter().map(|row| (account.clone(), row.id)).collect();
    sessions_unpark(tx, &names).await?;
    let messages = parked
        .iter()
        .flat_map(|row| opened(account, (gate, gate_ref), row, setting))
        .collect();
    Ok((parked.len(), messages))
}

/// The event of an unparked session, and the wake-up for delivery. The time of its parking makes theirs unique: the broker
/// would take a repeated wake-up for a duplicate.
fn opened(account: &AccountId, (gate, gate_ref): (Gate, Uuid), row: &ParkedRow, setting: &Setting<'_>) -> [Owned; 2] {
    let released = SessionGated {
        session_id: row.id,
        session_key: row.key.clone(),
        generation: row.generation,
        agent_id: row.agent_id,
        gate,
        queued: row.queued.unsigned_abs(),
    };
    let since = row.gated_since.map_or(0, OffsetDateTime::unix_timestamp_nanos);
    let id = format!("{}:{gate_ref}:{since}", row.id);
    let event = setting.event(account, row.task.as_ref(), &id, Event::SessionReleased(released));
    let wake_up = SessionResolved {
        account: account.clone(),
        task: row.task.clone(),
        session_id: row.id,
        session_key: row.key.clone(),
        generation: row.generation,
        agent_id: row.agent_id,
        position: row.queue_tail,
    };
    let id = format!("{}:{gate_ref}:{since}", wake_up.message_id());
    [event, setting.message(&id, &wake_up)]
}
