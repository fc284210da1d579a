//! Every query on timers. `storage::timer` changes them.

use api::timers::Timer;
use domain::{AccountId, TimerId};
use storage::{StorageError, Tx};

use crate::paging::{Column, Listing, Order};

/// Ids grow in the order of creation. Relies on the primary key.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, kind, state, due_at, task_id, session_id, agent_id, note, chain, created_at, notification_id,
            ended_at, reason
        from timer where account_id = $1",
    order: &[("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some("($2::text is null or task_id = $2) and ($3::text is null or state = $3)"),
    bytes: "octet_length(note) + coalesce(octet_length(reason), 0)",
    names: (
        ", coalesce(k.display_id, page.task_id) as task",
        "left join task k on k.account_id = page.account_id and k.id = page.task_id",
    ),
};

/// Relies on the primary keys.
const FIND: &str = "
    select t.id, t.kind, t.state, t.due_at, coalesce(k.display_id, t.task_id) as task, t.session_id, t.agent_id, t.note, t.chain,
           t.created_at, t.notification_id, t.ended_at, t.reason
    from timer t left join task k on k.account_id = t.account_id and k.id = t.task_id
    where t.account_id = $1 and t.id = $2";

pub async fn timer_find(tx: &Tx, account: &AccountId, timer: TimerId) -> Result<Option<Timer>, StorageError> {
    tx.one("find timer", FIND, [account.into(), timer.into()]).await
}
