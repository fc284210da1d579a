//! Every query on agents. Removed agents stay in the table, since sessions and turns refer to them, and are not found here.

use std::collections::HashMap;

use api::agents::{Agent, AgentChange, AgentName, NewAgent};
use domain::{AccountId, AgentId, AgentRef, AgentSlug};
use storage::{StorageError, Tx};
use time::OffsetDateTime;
use uuid::Uuid;

use super::PROVIDER_DEFAULT;
use crate::{
    directory::reached,
    paging::{Column, Listing, Order},
};

/// A reference to an agent as a statement takes it: by slug, or by id.
pub fn agent_columns(agent: Option<&AgentRef>) -> (Option<AgentSlug>, Option<AgentId>) {
    match agent {
        None => (None, None),
        Some(AgentRef::Slug(slug)) => (Some(slug.clone()), None),
        Some(AgentRef::Id(id)) => (None, Some(*id)),
    }
}

const INSERT: &str = "
    insert into agent (account_id, id, slug, name, role, provider, created_at, context_policy, rotation)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    returning id, slug, name, role, provider, context_policy, rotation, created_at";

/// Fails with a unique violation when a live agent has the slug.
pub async fn agent_insert(
    tx: &Tx,
    account: &AccountId,
    new: NewAgent,
    now: OffsetDateTime,
) -> Result<Agent, StorageError> {
    let values = [
        account.into(),
        Uuid::now_v7().into(),
        String::from(new.slug).into(),
        String::from(new.name).into(),
        new.role.map(String::from).unwrap_or_default().into(),
        new.provider
            .map_or_else(|| PROVIDER_DEFAULT.to_owned(), String::from)
            .into(),
        now.into(),
        new.context_policy.into(),
        new.rotation.map(|rotation| rotation.stored()).into(),
    ];
    let made = tx.one("make agent", INSERT, values).await?;
    made.ok_or_else(|| StorageError::unreadable("make agent", "no answer"))
}

macro_rules! select {
    ($where:literal) => {
        concat!(
            "select id, slug, name, role, provider, context_policy, rotation, created_at from agent
             where account_id = $1 and removed_at is null and ",
            $where
        )
    };
}

pub async fn agent_find(tx: &Tx, account: &AccountId, agent: &AgentRef) -> Result<Option<Agent>, StorageError> {
    let (sql, named) = match agent {
        AgentRef::Id(id) => (select!("id = $2"), id.into()),
        AgentRef::Slug(slug) => (select!("slug = $2"), slug.into()),
    };
    tx.one("find agent", sql, [account.into(), named]).await
}

const RESOLVE: &str = "
    select id, slug from agent
    where account_id = $1 and removed_at is null and (id = any($2::uuid[]) or slug = any($3::text[]))";

/// The ids of the agents that exist, by the reference that named each.
pub async fn agents_resolve(
    tx: &Tx,
    account: &AccountId,
    agents: &[AgentRef],
) -> Result<HashMap<AgentRef, AgentId>, StorageError> {
    let (slugs, ids): (Vec<_>, Vec<_>) = agents.iter().map(|agent| agent_columns(Some(agent))).unzip();
    let slugs: Vec<AgentSlug> = slugs.into_iter().flatten().collect();
    let ids: Vec<AgentId> = ids.into_iter().flatten().collect();
    let found: Vec<AgentName> = tx
        .rows("find agents", RESOLVE, [account.into(), ids.into(), slugs.into()])
        .await?;
    let mut resolved = HashMap::new();
    for AgentName { id, slug } in found {
        let id = AgentId(id);
        resolved.insert(AgentRef::Id(id), id);
        if let Ok(slug) = AgentSlug::parse(&slug) {
            resolved.insert(AgentRef::Slug(slug), id);
        }
    }
    Ok(resolved)
}

/// No agent's slug is an orchestrator's handle. `$2`: the kind; `$3`: the person who looks; `$4`: whether the caller may know who the
/// account's people are. Relies on agent_slug and on orchestrator_identity_handle, whose orders are merged.
pub const LIST: Listing = Listing {
    rows: concat!(
        "select * from (
            (select a.account_id, 'worker' as kind, a.slug as handle, a.id, a.slug, a.name, a.role, a.provider, a.context_policy, a.rotation,
                   a.created_at, null::text as avatar, null::text as user_id
            from agent a where a.account_id = $1 and a.removed_at is null order by a.slug)
            union all
            (select i.account_id, 'orchestrator', i.handle, null, null, i.name, '', null, null, null, null, i.avatar, i.user_id
            from orchestrator_identity i where i.account_id = $1 and $4 and ",
        reached!(),
        " order by i.handle)) a where true"
    ),
    order: &[("handle", Column::Text)],
    begins: Order::OldestFirst,
    wanted: Some("$2::text is null or kind = $2"),
    bytes: "octet_length(role) + octet_length(name) + coalesce(octet_length(rotation::text), 0)",
    names: ("", ""),
};

const CHANGE: &str = "
    update agent set slug = coalesce($3, slug), name = coalesce($4, name), role = coalesce($5, role),
        provider = coalesce($6, provider), context_policy = case when $7 then $8 else context_policy end,
        rotation = case when $9 then $10 else rotation end
    where account_id = $1 and id = $2 and removed_at is null
    returning id, slug, name, role, provider, context_policy, rotation, created_at";

/// Fails with a unique violation when another live agent has the slug. `None`: the agent was removed.
pub async fn agent_change(
    tx: &Tx,
    account: &AccountId,
    agent: AgentId,
    change: AgentChange,
) -> Result<Option<Agent>, StorageError> {
    let values = [
        account.into(),
        agent.into(),
        change.slug.map(String::from).into(),
        change.name.map(String::from).into(),
        change.role.map(String::from).into(),
        change.provider.map(String::from).into(),
        change.context_policy.is_some().into(),
        change.context_policy.flatten().into(),
        change.rotation.is_some().into(),
        change.rotation.flatten().map(|rotation| rotation.stored()).into(),
    ];
    tx.one("change agent", CHANGE, values).await
}
