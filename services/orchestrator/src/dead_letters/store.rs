//! Every query on dead letters. `owner` is an account, or the operator's place.

use sea_orm::{ActiveModelTrait, ActiveValue::Set, ColumnTrait, EntityTrait, QueryFilter, QuerySelect};
use storage::{
    StorageError, Tx,
    entity::dead_letter::{ActiveModel, Column, Entity, Model},
    error::Attempt,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::paging::{Moment, Order, Page, Rows};

/// Newest first. Relies on dead_letter_newest.
pub async fn letter_list(tx: &Tx, owner: &str, page: &Page<'_, Moment<Uuid>>) -> Result<Rows<Model>, StorageError> {
    let query = Entity::find().filter(Column::AccountId.eq(owner));
    page.read(
        tx,
        query,
        (Column::CreatedAt, Column::Id),
        Order::NewestFirst,
        "list dead letters",
    )
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
