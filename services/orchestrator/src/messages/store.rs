//! Every query on messages. Posting is `storage::lifecycle`'s, since agents post too.

use domain::{
    AccountId, TaskId,
    planted::{Bug, is_planted},
};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter};
use storage::{
    StorageError, Tx,
    entity::message::{Column, Entity, Model},
};
use uuid::Uuid;

use crate::paging::{Moment, Order, Page, Rows};

/// Oldest first, as a thread is read. Relies on message_thread.
pub async fn message_list(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    page: &Page<'_, Moment<Uuid>>,
) -> Result<Rows<Model>, StorageError> {
    let mut query = Entity::find().filter(Column::TaskId.eq(task.key().as_str()));
    if !is_planted(Bug::WallsDropped) {
        query = query.filter(Column::AccountId.eq(account.as_str()));
    }
    page.read(
        tx,
        query,
        (Column::CreatedAt, Column::Id),
        Order::OldestFirst,
        "list messages",
    )
    .await
}
