//! What a session's timers allow.

use domain::{AccountId, SessionId, TurnId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

/// A session's next timer.
#[derive(Debug, FromQueryResult)]
pub(crate) struct Later {
    /// Its timers that wait.
    pub waiting: i64,
    /// Timers in a row that led to its turn in progress.
    pub chain: i32,
}

/// Calls of one session may run at the same time: they set timers one after the other, so that the count is exact.
const LATER_LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('timers of ' || $1 || ' ' || $2, 0))";

/// Relies on timer_of_session, turn_pkey and timer_item.
pub const LATER: &str = "
    select (select count(*) from timer t
            where t.account_id = $1 and t.session_id = $2 and t.state = 'waiting' and t.kind = 'check_later') as waiting,
           (select coalesce(sum(b.chain + 1), 0)::integer
            from (select u.account_id, u.notification_ids[1] as item from turn u where u.account_id = $1 and u.id = $3 offset 0) u
            cross join lateral (
                select b.chain from timer b
                where b.account_id = any (array[u.account_id]) and b.notification_id = u.item offset 0) b) as chain";

/// The caller holds the session's shared lock.
pub(crate) async fn later(
    tx: &Tx,
    account: &AccountId,
    (session, turn): (SessionId, TurnId),
) -> Result<Later, StorageError> {
    const ATTEMPT: &str = "count timers";
    let values = [account.into(), session.to_string().into()];
    tx.execute("lock timers of a session", LATER_LOCK, values).await?;
    let found = tx
        .one(ATTEMPT, LATER, [account.into(), session.into(), turn.into()])
        .await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}
