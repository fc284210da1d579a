//! Every query on accounts.

use domain::{AccountId, TaskId};
use sea_orm::{ActiveModelTrait, ActiveValue::Set, EntityTrait};
use storage::{
    StorageError, Tx,
    entity::account::{ActiveModel, Entity, Model},
    error::Attempt,
};
use time::OffsetDateTime;

use super::AccountChange;

const ACCOUNT_INSERT: &str = "
    insert into account (id, name, created_at) values ($1, $2, $3) on conflict do nothing";

/// `false`: there is one of that id.
pub async fn account_insert(
    tx: &Tx,
    account: &AccountId,
    name: &str,
    now: OffsetDateTime,
) -> Result<bool, StorageError> {
    let values = [account.into(), name.into(), now.into()];
    Ok(tx.execute("make account", ACCOUNT_INSERT, values).await? == 1)
}

/// The transaction has declared it, and requests are let in for accounts that exist.
pub async fn account_find(tx: &Tx, account: &AccountId) -> Result<Model, StorageError> {
    Entity::find_by_id(account.as_str())
        .one(&**tx)
        .await
        .attempt("read account")?
        .ok_or_else(|| StorageError::unreadable("read account", "it is gone"))
}

/// The task is stored as it is compared.
pub async fn account_change(tx: &Tx, account: &AccountId, change: AccountChange) -> Result<(), StorageError> {
    let mut row = ActiveModel {
        id: Set(account.to_string()),
        ..Default::default()
    };
    if let Some(name) = change.name {
        row.name = Set(name);
    }
    if let Some(scope) = change.session_scope {
        row.session_scope = Set(scope.to_string());
    }
    if let Some(layout) = change.instruction_layout {
        row.instruction_layout = Set(layout.to_string());
    }
    if let Some(auto_create) = change.auto_create_tasks {
        row.auto_create_tasks = Set(auto_create);
    }
    if let Some(task) = change.coordinator_task {
        row.coordinator_task = Set(task.as_ref().map(TaskId::key).map(String::from));
    }
    if let Some(briefing) = change.briefing {
        row.briefing = Set(briefing);
    }
    if let Some(turns) = change.turns_in_flight_max {
        row.turns_in_flight_max = Set(turns);
    }
    if row.is_changed() {
        row.update(&**tx).await.attempt("change account")?;
    }
    Ok(())
}
