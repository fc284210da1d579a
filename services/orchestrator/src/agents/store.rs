//! Every query on agents. Removed ones stay in the table, since sessions and turns refer to them, and are not found.

use std::collections::HashMap;

use domain::{AccountId, AgentId, AgentRef, AgentSlug};
use sea_orm::{ActiveModelTrait, ActiveValue::Set, ColumnTrait, EntityTrait, ExprTrait, QueryFilter};
use storage::{
    StorageError, Tx,
    entity::agent::{ActiveModel, Column, Entity, Model},
    error::Attempt,
};
use uuid::Uuid;

use super::AgentChange;
use crate::paging::{Listing, Order, Page, Rows};

/// Fails with a unique violation when a live agent has the slug.
pub async fn agent_insert(tx: &Tx, row: Model) -> Result<Model, StorageError> {
    ActiveModel::from(row)
        .reset_all()
        .insert(&**tx)
        .await
        .attempt("make agent")
}

pub async fn agent_find(tx: &Tx, account: &AccountId, agent: &AgentRef) -> Result<Option<Model>, StorageError> {
    let query = Entity::find()
        .filter(Column::AccountId.eq(account.as_str()))
        .filter(Column::RemovedAt.is_null());
    let query = match agent {
        AgentRef::Id(id) => query.filter(Column::Id.eq(id.uuid())),
        AgentRef::Slug(slug) => query.filter(Column::Slug.eq(slug.as_str())),
    };
    query.one(&**tx).await.attempt("find agent")
}

/// The ids of those that there are, by how they were named.
pub async fn agents_resolve(
    tx: &Tx,
    account: &AccountId,
    agents: &[AgentRef],
) -> Result<HashMap<AgentRef, AgentId>, StorageError> {
    let (mut ids, mut slugs) = (Vec::new(), Vec::new());
    for agent in agents {
        match agent {
            AgentRef::Id(id) => ids.push(id.uuid()),
            AgentRef::Slug(slug) => slugs.push(slug.to_string()),
        }
    }
    let found = Entity::find()
        .filter(Column::AccountId.eq(account.as_str()))
        .filter(Column::RemovedAt.is_null())
        .filter(Column::Id.is_in(ids).or(Column::Slug.is_in(slugs)))
        .all(&**tx)
        .await
        .attempt("find agents")?;
    let mut resolved = HashMap::new();
    for row in found {
        let id = AgentId(row.id);
        resolved.insert(AgentRef::Id(id), id);
        if let Ok(slug) = AgentSlug::parse(&row.slug) {
            resolved.insert(AgentRef::Slug(slug), id);
        }
    }
    Ok(resolved)
}

/// Ids tell the order in which they were made. Relies on the primary key.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, slug, name, role, provider, created_at, removed_at from agent where account_id = $1",
    order: &["id"],
    begins: Order::OldestFirst,
    wanted: Some("removed_at is null"),
    bytes: "octet_length(role) + octet_length(name)",
    names: ("", ""),
};

/// Oldest first.
pub async fn agent_list(tx: &Tx, account: &AccountId, page: &Page<'_, Uuid>) -> Result<Rows<Model>, StorageError> {
    page.read(tx, &LIST, [account.into()], |row: &Model| row.id, "list agents")
        .await
}

/// Fails with a unique violation when another live agent has the slug.
pub async fn agent_change(
    tx: &Tx,
    row: Model,
    slug: Option<AgentSlug>,
    change: AgentChange,
) -> Result<Model, StorageError> {
    let mut changed = ActiveModel::from(row.clone());
    if let Some(slug) = slug {
        changed.slug = Set(slug.into());
    }
    if let Some(name) = change.name {
        changed.name = Set(name);
    }
    if let Some(role) = change.role {
        changed.role = Set(role);
    }
    if let Some(provider) = change.provider {
        changed.provider = Set(provider);
    }
    if changed.is_changed() {
        changed.update(&**tx).await.attempt("change agent")
    } else {
        Ok(row)
    }
}
