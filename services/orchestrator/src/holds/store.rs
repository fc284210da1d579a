//! Every query on holds, and the counts of what they cover. `storage::hold` changes them.

use api::{
    holds::{Affected, Hold},
    sessions::SessionState,
};
use domain::{AccountId, HoldId, HoldScope, SessionId, TaskId};
use storage::{StorageError, Tx};

use crate::{
    paging::{Column, Listing, Order},
    sessions::store::session_find,
};

/// Sessions, turns and items that are counted.
const COUNTED_MAX: i64 = 10_000;

macro_rules! columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " id, scope_kind, scope_id, reason, by_kind, by_id, by_name, null::text as by_via, running, until, created_at,
            released_at is null and coalesce(until > now(), true) as active, released_at, released_by, user_id ",
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
         and ($3::text is null or scope_kind = $3) and ($4::text is null or scope_id = $4)
         and (user_id is null or (select current_setting('signalbox.person', true)) in (user_id, '*'))",
    ),
    bytes: "octet_length(reason) + octet_length(by_name)",
    names: ("", ""),
};

/// One on a person's orchestrator is shown as that is.
const FIND: &str = columns!(
    "select",
    "from hold where account_id = $1 and id = $2
       and (user_id is null or (select current_setting('signalbox.person', true)) in (user_id, '*'))"
);

pub async fn hold_find(tx: &Tx, account: &AccountId, hold: HoldId) -> Result<Option<Hold>, StorageError> {
    tx.one("find hold", FIND, [account.into(), hold.into()]).await
}

const TASK: &str = "select true from task where account_id = $1 and id = $2";
pub async fn is_task(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<bool, StorageError> {
    tx.exists("find task", TASK, [account.into(), task.key().into()]).await
}

macro_rules! affected {
    ($where:literal, $more:literal) => {
        concat!(
            "
    select count(*) filter (where s.queued > 0 or s.active_turn_id is not null) as sessions, count(s.active_turn_id) as turns,
           coalesce(sum(s.queued), 0)::bigint as items, count(*) >= $3 or ",
            $more,
            " as at_least
    from (select s.queued, s.active_turn_id from session s where s.account_id = $1 and ",
            $where,
            " limit $3) s"
        )
    };
}

/// Relies on session_of_agent.
pub const AFFECTED_OF_AGENT: &str = affected!(
    "s.agent_id = $2::uuid and coalesce(s.closed_at, 'infinity') = 'infinity'",
    "false"
);
/// Agents with one session for all of their tasks have further ones. Relies on session_active_task.
pub const AFFECTED_OF_TASK: &str = affected!(
    "s.task_id = $2 and s.kind = 'task' and s.closed_at is null",
    "(select a.session_scope = 'agent' from account a where a.id = $1)"
);
/// Relies on turn_open and notification_queue, whose orders are requested.
pub const AFFECTED_OF_ACCOUNT: &str = "
    select count(distinct w.session_id) as sessions, count(*) filter (where w.turn) as turns, count(*) filter (where not w.turn) as items,
           count(*) filter (where w.turn) >= $2 or count(*) filter (where not w.turn) >= $2 as at_least
    from ((select t.session_id, true as turn from turn t where t.account_id = $1 and t.finished_at is null
           order by t.account_id, t.session_id limit $2)
          union all
          (select n.session_id, false from notification n where n.account_id = $1 and n.state = 'queued'
           order by n.account_id, n.session_id, n.position limit $2)) w";

/// What a hold on this covers now.
pub async fn affected(
    tx: &Tx,
    account: &AccountId,
    scope: HoldScope,
    scope_id: &str,
) -> Result<Affected, StorageError> {
    const ATTEMPT: &str = "count what a hold covers";
    let sql = match scope {
        HoldScope::Account => {
            let found = tx
                .one(ATTEMPT, AFFECTED_OF_ACCOUNT, [account.into(), COUNTED_MAX.into()])
                .await?;
            return found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no answer"));
        }
        HoldScope::Task => AFFECTED_OF_TASK,
        HoldScope::Agent => AFFECTED_OF_AGENT,
        HoldScope::Session => return of_session(tx, account, scope_id).await,
    };
    let found = tx
        .one(ATTEMPT, sql, [account.into(), scope_id.into(), COUNTED_MAX.into()])
        .await;
    found?.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no answer"))
}

async fn of_session(tx: &Tx, account: &AccountId, session: &str) -> Result<Affected, StorageError> {
    let session = match SessionId::parse(session) {
        Ok(session) => session_find(tx, account, session).await?,
        Err(_) => None,
    };
    let session = session.filter(|session| session.state == SessionState::Active);
    let items = session.as_ref().map_or(0, |session| i64::from(session.queued));
    let turns = session.map_or(0, |session| i64::from(session.active_turn_id.is_some()));
    let sessions = i64::from(items + turns > 0);
    Ok(Affected {
        turns,
        items,
        sessions,
        at_least: false,
    })
}
