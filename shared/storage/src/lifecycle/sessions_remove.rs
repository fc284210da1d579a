//! Closed sessions whose time is over are removed with all that hangs on them (S12), a piece at a time: what hangs on one may
//! be millions of rows. Of the newest generation of each session the row stays, emptied: it carries the number that must
//! not come back.

use domain::{AccountId, SessionId};
use sea_orm::{ConnectionTrait, FromQueryResult};
use uuid::Uuid;

use crate::{StorageError, Tx, error::Attempt, statement};

/// Replicas that find the same sessions share them: each takes those that no other holds.
const LOCK: &str = "
    select id from session
    where account_id = $1 and id = any($2::uuid[]) and closed_at is not null and emptied_at is null and active_turn_id is null
    for update skip locked";

/// What hangs on them, and nobody changes any more: found by where it lies. Relies on tool_call_session, turn_number and notification_ended: the queue of a closed session is empty.
const EMPTY: [&str; 3] = [
    "delete from tool_call where ctid = any (array(
         select ctid from tool_call where account_id = $1 and session_id = any($2::uuid[]) limit $3))",
    "delete from turn where ctid = any (array(
         select ctid from turn where account_id = $1 and session_id = any($2::uuid[]) limit $3))",
    "delete from notification where ctid = any (array(
         select ctid from notification
         where account_id = $1 and session_id = any($2::uuid[]) and state in ('delivered', 'failed', 'cancelled') limit $3))",
];

const EMPTIED: &str = "
    update session set emptied_at = now(), queue_tail = 0, turn_count = 0 where account_id = $1 and id = any($2::uuid[])";

/// SQL: generations of the same session as `s`, by their number. A branch for each kind, so that each of its columns is
/// compared as session_generation has it.
macro_rules! generations {
    ($number:literal) => {
        concat!(
            "(select o.id from session o
              where o.account_id = s.account_id and o.kind = s.kind and o.task_id = s.task_id and o.agent_id = s.agent_id
                and o.user_id is null and o.generation ",
            $number,
            " union all
              select o.id from session o
              where o.account_id = s.account_id and o.kind = s.kind and o.task_id is null and s.task_id is null
                and o.agent_id = s.agent_id and o.user_id is null and o.generation ",
            $number,
            " union all
              select o.id from session o
              where o.account_id = s.account_id and o.kind = s.kind and o.task_id is null and o.agent_id is null
                and s.agent_id is null and o.user_id = s.user_id and o.generation ",
            $number,
            " union all
              select o.id from session o
              where o.account_id = s.account_id and o.kind = s.kind and o.task_id is null and o.agent_id is null
                and s.agent_id is null and o.user_id is null and s.user_id is null and o.generation ",
            $number,
            ")"
        )
    };
}
/// Of what was emptied all go that have a successor: these, and the one before each, which may have been the newest when it
/// was emptied itself.
const SUPERSEDED: &str = concat!(
    "delete from session where account_id = $1 and emptied_at is not null and id = any (array(
         select s.id from session s
         where s.account_id = $1 and s.id = any($2::uuid[]) and exists ",
    generations!("> s.generation"),
    "    union all
         select b.id from session s cross join lateral ",
    generations!("= s.generation - 1"),
    " b where s.account_id = $1 and s.id = any($2::uuid[])))"
);

/// What one piece came to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Removal {
    /// Removed, or emptied.
    pub sessions: u64,
    /// What hung on them.
    pub rows: u64,
    /// There is more on them than a piece has.
    pub more: bool,
}

#[derive(FromQueryResult)]
struct Locked {
    id: Uuid,
}

/// Removes or empties those of these sessions of one account that nobody else is removing, or takes `rows_max` rows of each
/// kind off them.
pub async fn sessions_remove(
    tx: &Tx,
    account: &AccountId,
    sessions: &[SessionId],
    rows_max: i64,
) -> Result<Removal, StorageError> {
    let asked: Vec<Uuid> = sessions.iter().map(|id| id.uuid()).collect();
    let lock = statement(LOCK, [account.as_str().into(), asked.into()]);
    let locked = Locked::find_by_statement(lock).all(&**tx).await;
    let ids: Vec<Uuid> = locked
        .attempt("lock expired sessions")?
        .into_iter()
        .map(|row| row.id)
        .collect();
    let mut removal = Removal::default();
    if ids.is_empty() {
        return Ok(removal);
    }
    for sql in EMPTY {
        let values = [account.as_str().into(), ids.clone().into(), rows_max.into()];
        let emptied = tx.execute_raw(statement(sql, values)).await;
        let rows = emptied.attempt("empty expired sessions")?.rows_affected();
        removal.rows += rows;
        removal.more |= i64::try_from(rows).is_ok_and(|rows| rows >= rows_max);
    }
    if !removal.more {
        for sql in [EMPTIED, SUPERSEDED] {
            let values = [account.as_str().into(), ids.clone().into()];
            let removed = tx.execute_raw(statement(sql, values)).await;
            removed.attempt("remove expired sessions")?;
        }
        removal.sessions = ids.len() as u64;
    }
    Ok(removal)
}
