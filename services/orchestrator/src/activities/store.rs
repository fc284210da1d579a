//! Every query on activities.

use domain::{AccountId, TaskId};
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect};
use storage::{
    StorageError, Tx,
    entity::activity::{Column, Entity, Model},
    error::Attempt,
};
use uuid::Uuid;

use crate::paging::{Moment, Page, sql};

/// Newest first. Relies on activity_newest.
pub async fn activity_list(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    page: &Page<'_, Moment<Uuid>>,
) -> Result<Vec<Model>, StorageError> {
    let mut query = Entity::find()
        .filter(Column::AccountId.eq(account.as_str()))
        .filter(Column::TaskId.eq(task.key().as_str()));
    if let Some(after) = &page.after {
        query = query.filter(sql::before(Column::CreatedAt, Column::Id, after));
    }
    query
        .order_by_desc(Column::CreatedAt)
        .order_by_desc(Column::Id)
        .limit(page.rows())
        .all(&**tx)
        .await
        .attempt("list activities")
}
