//! Every query on dead letters. `owner` is an account, or the operator's place.

use sea_orm::{ActiveModelTrait, ActiveValue::Set, EntityTrait, QuerySelect};
use storage::{
    StorageError, Tx,
    entity::dead_letter::{ActiveModel, Entity, Model},
    error::Attempt,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::paging::{Listing, Moment, Order, Page, Rows};

/// Relies on dead_letter_newest. Headers are for sending it again, and are not shown.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, service, subject, reason, detail, payload, '{}'::jsonb as headers, attempts,
            created_at, redriven_at, redrives
        from dead_letter where account_id = $1",
    order: &["created_at", "id"],
    begins: Order::NewestFirst,
    wanted: None,
    bytes: "octet_length(payload) + octet_length(detail) + octet_length(subject)",
    names: ("", ""),
};

/// Newest first.
pub async fn letter_list(tx: &Tx, owner: &str, page: &Page<'_, Moment<Uuid>>) -> Result<Rows<Model>, StorageError> {
    let position = |row: &Model| Moment {
        at: row.created_at,
        id: row.id,
    };
    page.read(tx, &LIST, [owner.into()], position, "list dead letters")
        .await
}

pub async fn letter_find(tx: &Tx, owner: &str, letter: Uuid) -> Result<Option<Model>, StorageError> {
    Entity::find_by_id((owner.to_owned(), letter))
        .one(&**tx)
        .await
        .attempt("find dead letter")
}

/// The same, held until the transaction ends: two redrives at once would send one message id twice.
pub async fn letter_lock(tx: &Tx, owner: &str, letter: Uuid) -> Result<Option<Model>, StorageError> {
    Entity::find_by_id((owner.to_owned(), letter))
        .lock_exclusive()
        .one(&**tx)
        .await
        .attempt("lock dead letter")
}

/// Counts a redrive of a letter that is locked.
pub async fn letter_redriven(tx: &Tx, letter: Model, now: OffsetDateTime) -> Result<Model, StorageError> {
    let redrives = letter.redrives + 1;
    let mut changed = ActiveModel::from(letter);
    changed.redrives = Set(redrives);
    changed.redriven_at = Set(Some(now));
    changed.update(&**tx).await.attempt("note a redrive")
}
