//! Every query on messages. Posting is `storage::lifecycle`'s, since agents post too.

use domain::{
    AccountId, TaskId,
    planted::{Bug, is_planted},
};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};
use storage::{
    StorageError, Tx,
    entity::message::{Column, Entity, Model},
    error::Attempt,
};
use uuid::Uuid;

use crate::paging::{Moment, Page, sql};

/// Oldest first, as a thread is read. Relies on message_thread.
pub async fn message_list(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    page: &Page<'_, Moment<Uuid>>,
) -> Result<Vec<Model>, StorageError> {
    let mut query = Entity::find().filter(Column::TaskId.eq(task.key().as_str()));
    if !is_planted(Bug::WallsDropped) {
        query = query.filter(Column::AccountId.eq(account.as_str()));
    }
    if let Some(after) = &page.after {
        query = query.filter(sql::after(Column::CreatedAt, Column::Id, after));
    }
    query
        .order_by_asc(Column::CreatedAt)
        .order_by_asc(Column::Id)
        .limit(page.rows())
        .all(&**tx)
        .await
        .attempt("list messages")
}
