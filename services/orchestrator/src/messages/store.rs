//! Every query on messages. `storage::lifecycle` posts them, since agents post too.

use crate::paging::{Column, Listing, Order};

/// Relies on message_thread.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, task_id, author_kind, author_id, author_name, author_via, body, turn_id, created_at
        from message where account_id = $1 and task_id = $2",
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::OldestFirst,
    wanted: None,
    bytes: "octet_length(body)",
    names: ("", ""),
};
