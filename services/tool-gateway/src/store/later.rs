//! What a session's timers allow.

use domain::{AccountId, SessionId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

/// A session's next timer.
#[derive(Debug, FromQueryResult)]
pub(crate) struct Later {
    /// Its timers that wait.
    pub waiting: i64,
    /// Timers in a row that led to its newest turn.
    pub chain: i32,
}

/// Calls of one session may run at the same time: they set timers one after the other, so that the count is exact.
const LATER_LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('timers of ' || $1 || ' ' || $2, 0))";

/// Relies on timer_of_session, turn_number and timer_item.
const LATER: &str = "
    select (select count(*) from timer t
            where t.account_id = $1 and t.session_id = $2 and t.state = 'waiting' and t.kind = 'check_later') as waiting,
           coalesce((select b.chain + 1
                     from (select u.notification_ids[1] as item from turn u where u.account_id = $1 and u.session_id = $2
                           order by u.account_id, u.session_id, u.number desc limit 1) u
                     join timer b on b.account_id = $1 and b.notification_id = u.item), 0) as chain";

/// The caller holds the session's shared lock.
pub(crate) async fn later(tx: &Tx, account: &AccountId, session: SessionId) -> Result<Later, StorageError> {
    const ATTEMPT: &str = "count timers";
    let values = [account.into(), session.to_string().into()];
    tx.execute("lock timers of a session", LATER_LOCK, values).await?;
    let found = tx.one(ATTEMPT, LATER, [account.into(), session.into()]).await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}
