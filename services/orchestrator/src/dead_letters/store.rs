//! Every query on dead letters. `owner` is an account id, or the operator's.

use api::dead_letters::DeadLetter;
use sea_orm::{EntityTrait, QuerySelect};
use storage::{
    StorageError, Tx,
    entity::dead_letter::{Entity, Model},
    error::Attempt,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::paging::{Column, Listing, Order};

/// The columns that are shown. Headers are needed only for a redrive.
macro_rules! columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " id, service, subject, reason, detail, payload, attempts, created_at, redriven_at, redrives ",
            $after
        )
    };
}

/// Relies on dead_letter_newest.
pub const LIST: Listing = Listing {
    rows: columns!("select account_id,", "from dead_letter where account_id = $1"),
    order: &[("created_at", Column::Time), ("id", Column::Uuid)],
    begins: Order::NewestFirst,
    wanted: None,
    bytes: "octet_length(payload) + octet_length(detail) + octet_length(subject)",
    names: ("", ""),
};

/// Relies on the primary key.
const FIND: &str = columns!("select", "from dead_letter where account_id = $1 and id = $2");

pub async fn letter_find(tx: &Tx, owner: &str, letter: Uuid) -> Result<Option<DeadLetter>, StorageError> {
    tx.one("find dead letter", FIND, [owner.into(), letter.into()]).await
}

/// The whole row, locked until the transaction ends: two redrives at once would send the same message id twice.
pub async fn letter_lock(tx: &Tx, owner: &str, letter: Uuid) -> Result<Option<Model>, StorageError> {
    Entity::find_by_id((owner.to_owned(), letter))
        .lock_exclusive()
        .one(&**tx)
        .await
        .attempt("lock dead letter")
}

const REDRIVEN: &str = columns!(
    "update dead_letter set redrives = redrives + 1, redriven_at = $3 where account_id = $1 and id = $2 returning",
    ""
);

/// Counts a redrive. The caller holds the row lock.
pub async fn letter_redriven(
    tx: &Tx,
    owner: &str,
    letter: Uuid,
    now: OffsetDateTime,
) -> Result<Option<DeadLetter>, StorageError> {
    tx.one("count a redrive", REDRIVEN, [owner.into(), letter.into(), now.into()])
        .await
}
