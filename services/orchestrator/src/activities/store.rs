//! Every query on activities.

use domain::{AccountId, TaskId};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter};
use storage::{
    StorageError, Tx,
    entity::activity::{Column, Entity, Model},
};
use uuid::Uuid;

use crate::paging::{Moment, Order, Page, Rows};

/// Newest first. Relies on activity_newest.
pub async fn activity_list(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    page: &Page<'_, Moment<Uuid>>,
) -> Result<Rows<Model>, StorageError> {
    let query = Entity::find()
        .filter(Column::AccountId.eq(account.as_str()))
        .filter(Column::TaskId.eq(task.key().as_str()));
    page.read(
        tx,
        query,
        (Column::CreatedAt, Column::Id),
        Order::NewestFirst,
        "list activities",
    )
    .await
}
