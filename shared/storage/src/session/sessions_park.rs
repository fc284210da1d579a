//! Parks sessions behind a gate, and unparks them. A parked session is in phase `backoff` without a turn; it uses no attempt and
//! holds no lease. The caller holds the sessions' locks.

use domain::{Gate, HoldId, SessionPhase};
use uuid::Uuid;

use super::SessionName;
use crate::{
    StorageError, Tx,
    statement::{column, pairs},
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Park {
    pub session: SessionName,
    /// As the state table says.
    pub phase: SessionPhase,
    pub gate: Gate,
    /// The hold that keeps it, if the gate is one.
    pub hold: Option<HoldId>,
    /// When to look again.
    pub wake_ms: i64,
}

/// The same gate again counts a look. Relies on the primary key.
pub const SESSIONS_PARK: &str = "
    update session s set phase = p.phase, lease_owner = null, gate = p.gate,
        gate_ref = nullif(p.hold, '00000000-0000-0000-0000-000000000000'), wake_at = now() + p.wake_ms * interval '1 millisecond',
        gated_since = case when s.gate = p.gate then s.gated_since else now() end,
        gate_looks = case when s.gate = p.gate then s.gate_looks + 1 else 0 end
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::uuid[])
        as p (account_id, id, phase, gate, wake_ms, hold)
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
        column(parks, |park| park.wake_ms),
        column(parks, |park| park.hold.map_or(Uuid::nil(), Uuid::from)),
    ];
    tx.execute("park sessions", SESSIONS_PARK, values).await.map(|_| ())
}

/// A version without gates may have begun a turn. Relies on the primary key.
pub const SESSIONS_UNPARK: &str = "
    update session s set gate = null, gate_ref = null, gated_since = null, gate_looks = 0,
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

/// Relies on the primary key.
pub const SESSIONS_LOOK: &str = "
    update session s set wake_at = now()
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    where s.account_id = any (array[w.account_id]) and s.id = w.id and s.gate is not null and s.active_turn_id is null";

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
