//! Every query on activities.

use domain::{AccountId, TaskId};
use storage::{StorageError, Tx};
use uuid::Uuid;

use super::Activity;
use crate::paging::{Listing, Moment, Order, Page, Rows};

/// Relies on activity_newest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, task_id, kind, actor_kind, actor_id, actor_name, detail, created_at
        from activity where account_id = $1 and task_id = $2",
    order: &["created_at", "id"],
    begins: Order::NewestFirst,
    wanted: None,
    bytes: "octet_length(detail::text)",
    names: ("", ""),
};

/// Newest first.
pub async fn activity_list(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    page: &Page<'_, Moment<Uuid>>,
) -> Result<Rows<Activity>, StorageError> {
    let values = [account.into(), task.key().into()];
    let position = |row: &Activity| Moment {
        at: row.created_at,
        id: row.id,
    };
    page.read(tx, &LIST, values, position, "list activities").await
}
