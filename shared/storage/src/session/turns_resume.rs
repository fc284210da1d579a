//! Claims waiting turns, and extends their wait.

use domain::{SessionPhase, TurnId, TurnState};
use uuid::Uuid;

use super::SessionName;
use crate::{
    StorageError, Tx,
    statement::{column, pairs},
};

/// Resumes turns: takes the lease, and sets the turn's fence to the lease's, so that the previous holder can change
/// nothing. The caller holds the sessions' locks and has admitted them. Relies on primary keys; no index finds a
/// session's active turn.
pub const TURNS_RESUME: &str = "
    with leased as (
        update session s set phase = w.phase, lease_owner = $6, fence = s.fence + 1, wake_at = null
        from unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $7::bytea[])
            as w (account_id, id, session_id, phase, state, manifest)
        where s.account_id = any (array[w.account_id]) and s.id = w.session_id
        returning s.account_id, s.fence, case when s.active_turn_id = w.id then w.id end as turn_id, w.state, w.manifest
    )
    update turn t set fence = l.fence, state = l.state, sent_at = now(),
        manifest_packed = case when l.manifest = ''::bytea then t.manifest_packed else l.manifest end
    from leased l
    where t.account_id = any (array[l.account_id]) and t.id = l.turn_id";

/// A turn that is resumed.
#[derive(Clone, Debug)]
pub struct Resumed {
    pub session: SessionName,
    pub turn: TurnId,
    /// The session's phase after the claim.
    pub phase: SessionPhase,
    pub state: TurnState,
    /// The turn's manifest, packed, where it is sent otherwise than before. Empty: it stays.
    pub manifest: Vec<u8>,
}

pub async fn turns_resume(tx: &Tx, turns: &[Resumed], replica: Uuid) -> Result<(), StorageError> {
    if turns.is_empty() {
        return Ok(());
    }
    let values = [
        column(turns, |resumed| resumed.session.0.clone()),
        column(turns, |resumed| resumed.turn),
        column(turns, |resumed| resumed.session.1),
        column(turns, |resumed| resumed.phase),
        column(turns, |resumed| resumed.state),
        replica.into(),
        column(turns, |resumed| resumed.manifest.clone()),
    ];
    tx.execute("resume turns", TURNS_RESUME, values).await.map(|_| ())
}

/// A turn that waits for its provider as it is.
#[derive(Clone, Debug)]
pub struct Deferred {
    pub session: SessionName,
    /// As the state table says.
    pub phase: SessionPhase,
    /// When to look again.
    pub wake_ms: i64,
}

/// The caller holds the sessions' locks; a holder that may have had the lease is dead, and its fence ends with the next claim.
/// Relies on the primary key.
pub const TURNS_DEFER: &str = "
    update session s set phase = w.phase, lease_owner = null, wake_at = now() + w.wake_ms * interval '1 millisecond'
    from unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[]) as w (account_id, id, phase, wake_ms)
    where s.account_id = any (array[w.account_id]) and s.id = w.id";

pub async fn turns_defer(tx: &Tx, turns: &[Deferred]) -> Result<(), StorageError> {
    if turns.is_empty() {
        return Ok(());
    }
    let values = [
        column(turns, |deferred| deferred.session.0.clone()),
        column(turns, |deferred| deferred.session.1),
        column(turns, |deferred| deferred.phase),
        column(turns, |deferred| deferred.wake_ms),
    ];
    tx.execute("defer turns", TURNS_DEFER, values).await.map(|_| ())
}

/// Requests the next tool result, or the same one again. Relies on the primary key. The caller holds the rows' locks
/// and has checked that the sessions wait. The statement does not compare the phase: the planner would take index
/// session_due and read all waiting sessions.
pub const TURNS_WAIT: &str = "
    update session s set asked = w.asked, wake_at = now() + $4 * interval '1 millisecond'
    from unnest($1::text[], $2::uuid[], $3::integer[]) as w (account_id, id, asked)
    where s.account_id = any (array[w.account_id]) and s.id = w.id";

/// Each session with the position of the requested call.
pub async fn turns_wait(tx: &Tx, asked: &[(SessionName, i32)], ms: i64) -> Result<(), StorageError> {
    if asked.is_empty() {
        return Ok(());
    }
    let (names, asked): (Vec<SessionName>, Vec<i32>) = asked.iter().cloned().unzip();
    let (accounts, ids) = pairs(&names);
    let values = [accounts.into(), ids.into(), asked.into(), ms.into()];
    tx.execute("extend waits", TURNS_WAIT, values).await.map(|_| ())
}
