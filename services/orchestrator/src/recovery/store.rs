//! Every query on recoveries. `storage::recovery` changes them.

use api::recoveries::Recovery;
use domain::{AccountId, RecoveryId};
use storage::{StorageError, Tx};

use crate::paging::{Column, Listing, Order};

macro_rules! columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " r.id, coalesce(k.display_id, r.task_id) as task, r.agent_id, r.cause, r.state, r.attempts, r.detail, r.reason,
              r.notification_id, r.since, r.created_at, r.ended_at
              from recovery r left join task k on k.account_id = r.account_id and k.id = r.task_id ",
            $after
        )
    };
}

/// Relies on recovery_newest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, task_id, agent_id, cause, state, attempts, detail, reason, notification_id, since, created_at, ended_at
        from recovery where account_id = $1",
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: Some("($2::text is null or state = $2) and ($3::text is null or task_id = $3)"),
    bytes: "octet_length(detail)",
    names: (
        ", coalesce(t.display_id, page.task_id) as task",
        "left join task t on t.account_id = page.account_id and t.id = page.task_id",
    ),
};

/// Relies on the primary keys.
const FIND: &str = columns!("select", "where r.account_id = $1 and r.id = $2");

pub async fn recovery_find(
    tx: &Tx,
    account: &AccountId,
    recovery: RecoveryId,
) -> Result<Option<Recovery>, StorageError> {
    tx.one("find recovery", FIND, [account.into(), recovery.into()]).await
}
