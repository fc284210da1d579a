//! Tells which waiting items may share a turn in a session that is a person's own: its tools, and who hears its reply, follow from whose
//! words it is about. The person's own words, their agents' and Signalbox's are of one kind, those of others of another; and so are items that
//! others read the answer to. Sessions that belong to no person have no such statement.

use std::collections::HashSet;

use domain::{AccountId, NotificationId, UserId};
use sea_orm::FromQueryResult;

use crate::{StorageError, Tx, statement::column};

/// SQL: of an item `n` in a session of the person `user`. What is not known is neither the person's own nor private; and whom a publisher
/// names as the sender, nobody has vouched for.
#[macro_export]
macro_rules! is_foreign {
    ($n:literal, $user:literal) => {
        concat!(
            "(",
            $n,
            ".sender_via is not distinct from 'publisher' or ",
            $n,
            ".metadata ->> 'guest_of' is not null and ",
            $n,
            ".sender_kind <> 'user' or case ",
            $n,
            ".sender_kind when 'user' then ",
            $n,
            ".sender_id <> ",
            $user,
            " when 'service' then ",
            $n,
            ".sender_id <> 'signalbox' when 'agent' then false else true end)"
        )
    };
}

/// SQL: others read the answer to the item `n`.
#[macro_export]
macro_rules! is_shared {
    ($n:literal) => {
        concat!(
            "coalesce(",
            $n,
            ".metadata #>> '{channel,surface}', 'private') <> 'private'"
        )
    };
}

/// An item that may join the turn of another one.
#[derive(Clone, Debug)]
pub struct Joining<'a> {
    pub account: &'a AccountId,
    /// Whose own the session is.
    pub owner: &'a UserId,
    /// The first item of the turn.
    pub first: &'a str,
    pub id: &'a str,
}

/// Relies on the primary key.
pub const ITEMS_ALIKE: &str = concat!(
    "
    select w.account_id, w.id from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as w (account_id, user_id, first, id)
    cross join lateral (select * from notification n where n.account_id = w.account_id and n.id = w.first offset 0) f
    cross join lateral (select * from notification n where n.account_id = w.account_id and n.id = w.id offset 0) n
    where (", is_foreign!("f", "w.user_id"), ") = (", is_foreign!("n", "w.user_id"), ")
      and (", is_shared!("f"), ") = (", is_shared!("n"), ")"
);

#[derive(FromQueryResult)]
struct Row {
    account_id: AccountId,
    id: NotificationId,
}

/// Those of these that are of the kind of their turn's first item. For none there is no statement.
pub async fn items_alike(tx: &Tx, items: &[Joining<'_>]) -> Result<HashSet<(AccountId, NotificationId)>, StorageError> {
    if items.is_empty() {
        return Ok(HashSet::new());
    }
    let values = [
        column(items, |item| item.account.clone()),
        column(items, |item| item.owner.to_string()),
        column(items, |item| item.first.to_owned()),
        column(items, |item| item.id.to_owned()),
    ];
    let rows: Vec<Row> = tx.rows("find items of one kind", ITEMS_ALIKE, values).await?;
    Ok(rows.into_iter().map(|row| (row.account_id, row.id)).collect())
}
