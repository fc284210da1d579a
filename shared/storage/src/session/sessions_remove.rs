//! Removes expired closed sessions with all their rows (S12), a piece at a time: one session may have millions of rows.
//! The row of each session's newest generation stays, emptied: it carries the generation number, which must not be
//! reused. A branch and a replay have one generation, and go with their session.

use domain::{AccountId, SessionId};
use sea_orm::FromQueryResult;

use crate::{StorageError, Tx};

/// Replicas that find the same sessions share them: each locks those that no other holds. Each session is looked up by
/// the primary key, also by a plan that was made while the tables were small: as in all statements here, `offset 0` or
/// a limit keeps the planner from reading all rows of the account, and conditions that could lead it to a partial index
/// are written without selectivity statistics.
pub const LOCK: &str = "
    select s.id from (select $1 as account_id, unnest($2::uuid[]) as id offset 0) w
    join session s on s.account_id = any (array[w.account_id]) and s.id = w.id
    where coalesce(s.closed_at is not null and s.emptied_at is null and s.active_turn_id is null, false)
    for update of s skip locked";

/// The rows of the sessions, which no transaction changes any more. Relies on tool_call_session, turn_number and
/// notification_ended: the queue of a closed session is empty.
pub const EMPTY: [&str; 3] = [
    "delete from tool_call where ctid = any (array(
         select t.place from unnest($2::uuid[]) as w (session_id) cross join lateral (
             select t.ctid as place from tool_call t
             where t.account_id = $1 and t.session_id = w.session_id limit $3) t limit $3))",
    "delete from turn where ctid = any (array(
         select t.place from unnest($2::uuid[]) as w (session_id) cross join lateral (
             select t.ctid as place from turn t
             where t.account_id = $1 and t.session_id = w.session_id order by t.number limit $3) t limit $3))",
    "delete from notification where ctid = any (array(
         select t.place from unnest($2::uuid[]) as w (session_id) cross join lateral (
             select t.ctid as place from notification t
             where t.account_id = $1 and t.session_id = w.session_id and t.state in ('delivered', 'failed', 'cancelled')
             limit $3) t limit $3))",
];

pub const EMPTIED: &str = "
    update session s set emptied_at = now(), queue_tail = 0, turn_count = 0
    from (select $1 as account_id, unnest($2::uuid[]) as id offset 0) w
    where s.account_id = any (array[w.account_id]) and s.id = w.id";

/// SQL: the newest of the generations of the session of `t` whose number satisfies the condition. A branch for each
/// kind, which compares and orders by its own columns, so that it uses session_generation, or session_of_guest.
macro_rules! generation {
    ($number:literal) => {
        concat!(
            "((select o.id from session o
               where o.account_id = t.account_id and o.kind = 'task' and t.kind = 'task' and o.task_id = t.task_id
                 and o.agent_id = t.agent_id and o.user_id is null and o.generation ",
            $number,
            "  order by o.user_id desc, o.generation desc limit 1)
              union all
              (select o.id from session o
               where o.account_id = t.account_id and o.kind = 'system' and t.kind = 'system' and o.task_id is null
                 and o.agent_id = t.agent_id and o.user_id is null and o.generation ",
            $number,
            "  order by o.task_id desc, o.user_id desc, o.generation desc limit 1)
              union all
              (select o.id from session o
               where o.account_id = t.account_id and o.kind = 'orchestrator' and t.kind = 'orchestrator' and o.task_id is null
                 and o.agent_id = t.agent_id and o.user_id = t.user_id and o.generation ",
            $number,
            "  order by o.task_id desc, o.generation desc limit 1)
              union all
              (select o.id from session o
               where o.account_id = t.account_id and o.kind = 'orchestrator' and t.kind = 'orchestrator' and o.task_id is null
                 and o.agent_id = t.agent_id and o.user_id is null and t.user_id is null and o.generation ",
            $number,
            "  order by o.task_id desc, o.user_id desc, o.generation desc limit 1)
              union all
              (select o.id from session o
               where o.account_id = t.account_id and o.kind = 'guest' and t.kind = 'guest' and o.user_id = t.user_id
                 and o.guest_user_id = t.guest_user_id and o.generation ",
            $number,
            "  order by o.generation desc limit 1))"
        )
    };
}
/// The generation before each, which may have been the newest when it was emptied itself. Its row is removed now, with
/// rows that were written late (a tool call of a closed session leaves its record).
pub const BEFORE: &str = concat!(
    "with before as materialized (
         select t.account_id, b.id from (select $1 as account_id, unnest($2::uuid[]) as id offset 0) w
         join session t on t.account_id = any (array[w.account_id]) and t.id = w.id
         cross join lateral ",
    generation!("< t.generation"),
    " b)
     select s.id from before b
     join session s on s.account_id = any (array[b.account_id]) and s.id = b.id
     where coalesce(s.emptied_at is not null, false)
     for update of s"
);

/// Relies on the primary keys.
pub const BRANCHES_REMOVE: &str = "
    delete from branch d using (
        select s.account_id, s.origin_id from (select $1 as account_id, unnest($2::uuid[]) as id offset 0) w
        join session s on s.account_id = any (array[w.account_id]) and s.id = w.id
        where coalesce(s.kind = 'branch', false) offset 0) s
    where d.account_id = any (array[s.account_id]) and d.id = s.origin_id";

/// Relies on the primary keys.
pub const REPLAYS_REMOVE: &str = "
    delete from replay d using (
        select s.account_id, s.origin_id from (select $1 as account_id, unnest($2::uuid[]) as id offset 0) w
        join session s on s.account_id = any (array[w.account_id]) and s.id = w.id
        where coalesce(s.kind = 'replay', false) offset 0) s
    where d.account_id = any (array[s.account_id]) and d.id = s.origin_id";

/// Every emptied session with a successor is removed, and each that can have none.
pub const SUPERSEDED: &str = concat!(
    "with gone as materialized (
         select t.account_id, t.id
         from (select $1 as account_id, unnest($2::uuid[]) as id offset 0) w
         join session t on t.account_id = any (array[w.account_id]) and t.id = w.id
         where t.kind in ('branch', 'replay') or exists ",
    generation!("> t.generation"),
    ")
     delete from session d using gone g
     where d.account_id = any (array[g.account_id]) and d.id = g.id"
);

/// The result of one piece.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Removal {
    /// Removed or emptied.
    pub sessions: u64,
    /// Their rows that were removed.
    pub rows: u64,
    /// They have more rows than a piece removes.
    pub more: bool,
}

#[derive(FromQueryResult)]
struct Locked {
    id: SessionId,
}

/// Removes or empties the sessions of one account that no other transaction is removing, or removes `rows_max` rows of
/// each kind of theirs.
pub async fn sessions_remove(
    tx: &Tx,
    account: &AccountId,
    sessions: &[SessionId],
    rows_max: i64,
) -> Result<Removal, StorageError> {
    let due = locked(tx, account, LOCK, sessions).await?;
    let mut removal = Removal::default();
    if due.is_empty() {
        return Ok(removal);
    }
    let mut all = locked(tx, account, BEFORE, &due).await?;
    all.extend(&due);
    for sql in EMPTY {
        let values = [account.into(), all.clone().into(), rows_max.into()];
        let rows = tx.execute("empty expired sessions", sql, values).await?;
        removal.rows += rows;
        removal.more |= i64::try_from(rows).is_ok_and(|rows| rows >= rows_max);
    }
    if !removal.more {
        for (sql, ids) in [
            (BRANCHES_REMOVE, &all),
            (REPLAYS_REMOVE, &all),
            (EMPTIED, &due),
            (SUPERSEDED, &all),
        ] {
            let values = [account.into(), ids.clone().into()];
            tx.execute("remove expired sessions", sql, values).await?;
        }
        removal.sessions = due.len() as u64;
    }
    Ok(removal)
}

/// Locks the rows that a statement finds for these sessions.
async fn locked(
    tx: &Tx,
    account: &AccountId,
    sql: &'static str,
    ids: &[SessionId],
) -> Result<Vec<SessionId>, StorageError> {
    let values = [account.into(), ids.to_vec().into()];
    let locked: Vec<Locked> = tx.rows("lock expired sessions", sql, values).await?;
    Ok(locked.into_iter().map(|row| row.id).collect())
}
