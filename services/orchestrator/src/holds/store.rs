//! Every query on holds, and the counts of what they cover. `storage::hold` changes them.

use api::holds::{Affected, Hold};
use domain::{AccountId, HoldId, HoldScope, SessionId, TaskId};
use storage::{StorageError, Tx};

use crate::paging::{Column, Listing, Order};

/// Sessions that are counted.
const COUNTED_MAX: i64 = 10_000;

macro_rules! columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " id, scope_kind, scope_id, reason, by_kind, by_id, by_name, null::text as by_via, running, until, created_at,
            released_at is null and coalesce(until > now(), true) as active, released_at, released_by ",
            $after
        )
    };
}

/// Ids grow in the order of creation. Relies on the primary key.
pub const LIST: Listing = Listing {
    rows: columns!("select account_id,", "from hold where account_id = $1"),
    order: &[("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some(
        "($2::boolean is null or (released_at is null and coalesce(until > now(), true)) = $2)
         and ($3::text is null or scope_kind = $3) and ($4::text is null or scope_id = $4)",
    ),
    bytes: "octet_length(reason) + octet_length(by_name)",
    names: ("", ""),
};

const FIND: &str = columns!("select", "from hold where account_id = $1 and id = $2");

pub async fn hold_find(tx: &Tx, account: &AccountId, hold: HoldId) -> Result<Option<Hold>, StorageError> {
    tx.one("find hold", FIND, [account.into(), hold.into()]).await
}

const TASK: &str = "select true from task where account_id = $1 and id = $2";
const SESSION: &str = "select true from session where account_id = $1 and id = $2";

pub async fn is_task(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<bool, StorageError> {
    tx.exists("find task", TASK, [account.into(), task.key().into()]).await
}

pub async fn is_session(tx: &Tx, account: &AccountId, session: SessionId) -> Result<bool, StorageError> {
    tx.exists("find session", SESSION, [account.into(), session.into()])
        .await
}

/// Of an account's sessions with work, the first ones. Relies on index session_attention; the comparison, which all rows pass, is
/// for the planner.
pub const AFFECTED: &str = "
    select count(*) filter (where w.covered) as sessions, count(*) filter (where w.covered and w.active_turn_id is not null) as turns,
           coalesce(sum(w.queued) filter (where w.covered), 0)::bigint as items, count(*) >= $4 as at_least
    from (select s.queued, s.active_turn_id,
                 s.closed_at is null and case $2 when 'account' then true when 'agent' then s.agent_id::text = $3
                                                 else s.id::text = $3 end as covered
          from session s
          where s.account_id = $1 and (s.phase <> 'idle' or s.queued > 0)
            and (s.phase, s.id) >= ('', '00000000-0000-0000-0000-000000000000'::uuid)
          order by s.account_id, s.phase, s.id limit $4) w";

/// Of a task: its sessions, and those of scope `agent` whose next item or turn in progress is on it. Relies on
/// session_active_task, session_active_system, notification_queue and turn_pkey.
pub const AFFECTED_OF_TASK: &str = "
    select count(*) as sessions, count(*) filter (where w.turn) as turns, coalesce(sum(w.queued), 0)::bigint as items,
           false as at_least
    from (
        select s.queued, s.active_turn_id is not null as turn from session s
        where s.account_id = $1 and s.task_id = $2 and s.kind = 'task' and s.closed_at is null
          and (s.phase <> 'idle' or s.queued > 0)
        union all
        select case when n.task_id = $2 then s.queued else 0 end, t.task_id is not null
        from session s
        left join lateral (
            select n.task_id from notification n
            where n.account_id = any (array[s.account_id]) and n.session_id = s.id and n.state = 'queued'
            order by n.position limit 1) n on true
        left join lateral (
            select t.task_id from turn t
            where t.account_id = any (array[s.account_id]) and t.id = s.active_turn_id and t.task_id = $2 limit 1) t on true
        where s.account_id = $1 and s.kind = 'system' and s.closed_at is null
          and (n.task_id = $2 or t.task_id is not null)) w";

/// What a hold on this covers now.
pub async fn affected(
    tx: &Tx,
    account: &AccountId,
    scope: HoldScope,
    scope_id: &str,
) -> Result<Affected, StorageError> {
    const ATTEMPT: &str = "count what a hold covers";
    let found = match scope {
        HoldScope::Task => {
            tx.one(ATTEMPT, AFFECTED_OF_TASK, [account.into(), scope_id.into()])
                .await
        }
        HoldScope::Account | HoldScope::Agent | HoldScope::Session => {
            let values = [account.into(), scope.into(), scope_id.into(), COUNTED_MAX.into()];
            tx.one(ATTEMPT, AFFECTED, values).await
        }
    };
    found?.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no answer"))
}
