//! Every query on messages. `storage::lifecycle` posts them, since agents post too.

use api::messages::Message;
use domain::{AccountId, TaskId};
use storage::{StorageError, Tx};
use uuid::Uuid;

use crate::paging::{Keyset, Listing, Order, Page, Rows};

/// Relies on message_thread.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, task_id, author_kind, author_id, author_name, author_via, body, turn_id, created_at
        from message where account_id = $1 and task_id = $2",
    order: &["created_at", "id"],
    begins: Order::OldestFirst,
    wanted: None,
    bytes: "octet_length(body)",
    names: ("", ""),
};

/// Oldest first.
pub async fn message_list(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    page: &Page<'_, Keyset<Uuid>>,
) -> Result<Rows<Message>, StorageError> {
    let values = [account.into(), task.key().into()];
    let position = |row: &Message| Keyset {
        at: row.created_at.0,
        id: row.id,
    };
    page.read(tx, &LIST, values, position, "list messages").await
}
