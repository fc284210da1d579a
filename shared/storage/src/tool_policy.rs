//! Tool policies: sets, changes and removes them, and reads those that decide. They are read only for accounts that have any
//! (`account.tool_policies`).
//!
//! Lock order: account, policies. One change of an account's policies at a time, so that its count is exact.

use std::collections::{BTreeSet, HashMap};

use contracts::event::{Event, ToolPolicyChanged};
use domain::{AccountId, Actor, ActorKind, PolicyScope, PolicyVerdict, ToolPolicyId, tool_policy::ToolPolicy};
use sea_orm::{FromQueryResult, Value};

use crate::{Setting, StorageError, Tx, accounts::account_lock, outbox::Owned, setting::fresh_id};

/// Policies of an account.
pub const POLICIES_MAX: i32 = 500;

/// What a policy says.
#[derive(Clone, Debug, Default)]
pub struct PolicyTerms {
    pub visible: Option<bool>,
    pub verdict: Option<PolicyVerdict>,
    pub audience: Option<Vec<String>>,
    pub schema_hash: Option<Vec<u8>>,
}

/// A policy to set.
#[derive(Clone, Debug)]
pub struct NewToolPolicy<'a> {
    pub account: &'a AccountId,
    pub scope: PolicyScope,
    /// As it is compared.
    pub scope_id: &'a str,
    pub tool: &'a str,
    pub terms: PolicyTerms,
    pub by: &'a Actor,
}

#[derive(Clone, Debug, FromQueryResult)]
struct PolicyRow {
    id: ToolPolicyId,
    scope_kind: PolicyScope,
    scope_id: String,
    tool: String,
    visible: Option<bool>,
    verdict: Option<PolicyVerdict>,
    revision: i32,
    by_kind: ActorKind,
    by_id: String,
    by_name: String,
}

macro_rules! returning {
    () => {
        " returning id, scope_kind, scope_id, tool, visible, verdict, revision, by_kind, by_id, by_name"
    };
}

/// Why a policy was not set or changed. The caller rolls back.
#[derive(Debug)]
pub enum NotSet {
    NoAccount,
    /// There is no such policy.
    Missing,
    /// The account has [`POLICIES_MAX`] others.
    TooMany,
    /// Another policy is for the same scope and tool.
    Exists {
        id: ToolPolicyId,
        verdict: Option<PolicyVerdict>,
        revision: i32,
    },
    /// It was changed since it was read.
    Changed {
        revision: i32,
    },
}

/// Relies on index tool_policy_scope.
const POLICY_INSERT: &str = concat!(
    "insert into tool_policy (account_id, id, scope_kind, scope_id, tool, visible, verdict, audience, schema_hash, by_kind, by_id,
                              by_name, created_at, updated_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13)
     on conflict (account_id, scope_kind, scope_id, tool) do nothing",
    returning!()
);

const POLICY_THERE: &str = "
    select id, verdict, revision from tool_policy where account_id = $1 and scope_kind = $2 and scope_id = $3 and tool = $4";

const POLICY_CHANGE: &str = concat!(
    "update tool_policy set visible = $4, verdict = $5, audience = $6, schema_hash = $7, by_kind = $8, by_id = $9, by_name = $10,
         updated_at = $11, revision = revision + 1
     where account_id = $1 and id = $2 and revision = coalesce($3, revision)",
    returning!()
);

const POLICY_REVISION: &str = "select revision from tool_policy where account_id = $1 and id = $2";

const POLICY_REMOVE: &str = concat!(
    "delete from tool_policy where account_id = $1 and id = $2",
    returning!()
);

/// What can hold for nothing any more: its session is closed, its agent removed, its task at an end or gone. Relies on
/// tool_policy_scope, on the primary keys of sessions and tasks, and on that of agents or all agents of the account, which cost the same;
/// at most [`POLICIES_MAX`] rows.
pub const POLICIES_VOID: &str = "
    delete from tool_policy p using (
        select w.account_id, w.id, s.there, g.there as agent, k.there as task, w.scope_kind
        from (select * from tool_policy w where w.account_id = $1 and w.scope_kind in ('agent', 'task_agent', 'session')
              order by w.account_id, w.scope_kind, w.scope_id, w.tool offset 0) w
        cross join lateral (select case when w.scope_kind in ('agent', 'session') then w.scope_id::uuid end as named offset 0) n
        cross join lateral (
            select count(*) as there from session s
            where s.account_id = any (array[w.account_id]) and s.id = n.named and s.closed_at is null) s
        cross join lateral (
            select count(*) as there from agent g
            where g.account_id = any (array[w.account_id]) and g.id = n.named and coalesce(g.removed_at, 'infinity') = 'infinity') g
        cross join lateral (
            select count(*) as there from task k
            where k.account_id = any (array[w.account_id]) and k.id = split_part(w.scope_id, '/', 1)
              and k.status not in ('done', 'cancelled', 'archived')) k
        offset 0) v
     where p.account_id = any (array[v.account_id]) and p.id = v.id
       and case v.scope_kind when 'session' then v.there when 'agent' then v.agent else v.task end = 0
     returning p.id, p.scope_kind, p.scope_id, p.tool, p.visible, p.verdict, p.revision, p.by_kind, p.by_id, p.by_name";

/// Relies on index tool_policy_scope.
pub const POLICIES_COUNT: &str = "
    update account a set tool_policies = c.policies
    from (select count(*)::integer as policies from tool_policy p where p.account_id = $1) c
    where a.id = $1 returning a.tool_policies as policies";

#[derive(FromQueryResult)]
struct Count {
    policies: i32,
}

#[derive(FromQueryResult)]
struct There {
    id: ToolPolicyId,
    verdict: Option<PolicyVerdict>,
    revision: i32,
}

#[derive(FromQueryResult)]
struct Revision {
    revision: i32,
}

async fn count(tx: &Tx, account: &AccountId) -> Result<i32, StorageError> {
    const ATTEMPT: &str = "count tool policies";
    let count: Option<Count> = tx.one(ATTEMPT, POLICIES_COUNT, [account.into()]).await?;
    count
        .map(|count| count.policies)
        .ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

/// Sets a policy. An account that would have too many loses first what can hold for nothing any more.
pub async fn policy_set(
    tx: &Tx,
    new: &NewToolPolicy<'_>,
    setting: &Setting<'_>,
) -> Result<Result<(ToolPolicyId, Vec<Owned>), NotSet>, StorageError> {
    const ATTEMPT: &str = "set tool policy";
    let account = new.account;
    if !account_lock(tx, account).await? {
        return Ok(Err(NotSet::NoAccount));
    }
    let terms = new.terms.clone();
    let values: [Value; 13] = [
        account.into(),
        ToolPolicyId(fresh_id()).into(),
        new.scope.into(),
        new.scope_id.into(),
        new.tool.into(),
        terms.visible.into(),
        terms.verdict.into(),
        terms.audience.into(),
        terms.schema_hash.into(),
        new.by.kind.into(),
        new.by.id.clone().into(),
        new.by.name.clone().into(),
        setting.now.into(),
    ];
    let Some(row) = tx.one::<PolicyRow>(ATTEMPT, POLICY_INSERT, values).await? else {
        return Ok(Err(policy_there(tx, new).await?));
    };
    let mut messages = vec![changed(account, &row, false, setting)];
    if count(tx, account).await? > POLICIES_MAX {
        let void: Vec<PolicyRow> = tx
            .rows("remove void tool policies", POLICIES_VOID, [account.into()])
            .await?;
        messages.extend(void.iter().map(|row| changed(account, row, true, setting)));
        if count(tx, account).await? > POLICIES_MAX {
            return Ok(Err(NotSet::TooMany));
        }
    }
    Ok(Ok((row.id, messages)))
}

async fn policy_there(tx: &Tx, new: &NewToolPolicy<'_>) -> Result<NotSet, StorageError> {
    const ATTEMPT: &str = "find tool policy";
    let values: [Value; 4] = [
        new.account.into(),
        new.scope.into(),
        new.scope_id.into(),
        new.tool.into(),
    ];
    let there: Option<There> = tx.one(ATTEMPT, POLICY_THERE, values).await?;
    there
        .map(|there| NotSet::Exists {
            id: there.id,
            verdict: there.verdict,
            revision: there.revision,
        })
        .ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}

/// Makes an approval last: sets a policy that allows, or renews the one for the same scope and tool. A rule that asks or denies stays.
pub async fn policy_allow(
    tx: &Tx,
    new: &NewToolPolicy<'_>,
    setting: &Setting<'_>,
) -> Result<Result<Vec<Owned>, NotSet>, StorageError> {
    match policy_set(tx, new, setting).await? {
        Ok((_, messages)) => Ok(Ok(messages)),
        Err(NotSet::Exists {
            id,
            verdict: Some(PolicyVerdict::Allow),
            revision,
        }) => policy_change(tx, new.account, (id, Some(revision)), &new.terms, new.by, setting).await,
        Err(other) => Ok(Err(other)),
    }
}

/// Changes what a policy says. `revision`: only that one.
pub async fn policy_change(
    tx: &Tx,
    account: &AccountId,
    (id, revision): (ToolPolicyId, Option<i32>),
    terms: &PolicyTerms,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Result<Vec<Owned>, NotSet>, StorageError> {
    const ATTEMPT: &str = "change tool policy";
    let terms = terms.clone();
    let values: [Value; 11] = [
        account.into(),
        id.into(),
        revision.into(),
        terms.visible.into(),
        terms.verdict.into(),
        terms.audience.into(),
        terms.schema_hash.into(),
        by.kind.into(),
        by.id.clone().into(),
        by.name.clone().into(),
        setting.now.into(),
    ];
    if let Some(row) = tx.one::<PolicyRow>(ATTEMPT, POLICY_CHANGE, values).await? {
        return Ok(Ok(vec![changed(account, &row, false, setting)]));
    }
    let there: Option<Revision> = tx.one(ATTEMPT, POLICY_REVISION, [account.into(), id.into()]).await?;
    Ok(Err(there.map_or(NotSet::Missing, |there| NotSet::Changed {
        revision: there.revision,
    })))
}

/// Removes a policy. `false`: there is none.
pub async fn policy_remove(
    tx: &Tx,
    account: &AccountId,
    id: ToolPolicyId,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<(bool, Vec<Owned>), StorageError> {
    account_lock(tx, account).await?;
    let values = [account.into(), id.into()];
    let Some(row) = tx.one::<PolicyRow>("remove tool policy", POLICY_REMOVE, values).await? else {
        return Ok((false, Vec::new()));
    };
    count(tx, account).await?;
    let row = PolicyRow {
        by_kind: by.kind,
        by_id: by.id.clone(),
        by_name: by.name.clone(),
        ..row
    };
    Ok((true, vec![changed(account, &row, true, setting)]))
}

fn changed(account: &AccountId, row: &PolicyRow, removed: bool, setting: &Setting<'_>) -> Owned {
    let data = ToolPolicyChanged {
        policy_id: row.id,
        scope: row.scope_kind,
        scope_id: row.scope_id.clone(),
        tool: row.tool.clone(),
        visible: row.visible,
        verdict: row.verdict,
        revision: row.revision,
        removed,
        by: Actor {
            kind: row.by_kind,
            id: row.by_id.clone(),
            name: row.by_name.clone(),
            via: None,
        },
    };
    let id = format!("{}:{}:{removed}", row.id, row.revision);
    setting.event(account, None, &id, Event::ToolPolicyChanged(data))
}

/// The policies of the accounts that a transaction has asked about.
#[derive(Debug, Default)]
pub struct Policies(HashMap<AccountId, Vec<ToolPolicy>>);

#[derive(FromQueryResult)]
struct OfAccount {
    account_id: AccountId,
    #[sea_orm(nested)]
    policy: ToolPolicy,
}

/// Relies on index tool_policy_scope, whose order is requested; at most [`POLICIES_MAX`] rows an account. A scope of a later version
/// is left to that version; a verdict of one is read as the strictest.
pub const POLICIES_OF: &str = "
    select w.account_id, p.id, p.scope_kind, p.scope_id, p.tool, p.visible, p.audience, p.schema_hash,
           case when p.verdict in ('allow', 'ask') then p.verdict when p.verdict is not null then 'deny' end as verdict
    from unnest($1::text[]) as w (account_id)
    cross join lateral (
        select * from tool_policy p where p.account_id = w.account_id
        order by p.account_id, p.scope_kind, p.scope_id, p.tool) p
    where p.scope_kind in ('account', 'agent', 'task', 'task_agent', 'session')";

impl Policies {
    /// Reads the policies of accounts that have any, by their counts. Without such an account, or once they are read, there is no
    /// statement.
    pub async fn read(
        &mut self,
        tx: &Tx,
        accounts: impl Iterator<Item = (&AccountId, i32)>,
    ) -> Result<(), StorageError> {
        let having = accounts.filter(|(account, policies)| *policies > 0 && !self.0.contains_key(account));
        let accounts: BTreeSet<AccountId> = having.map(|(account, _)| account.clone()).collect();
        if accounts.is_empty() {
            return Ok(());
        }
        let accounts: Vec<AccountId> = accounts.into_iter().collect();
        let rows: Vec<OfAccount> = tx
            .rows("read tool policies", POLICIES_OF, [accounts.clone().into()])
            .await?;
        self.0.extend(accounts.into_iter().map(|account| (account, Vec::new())));
        for row in rows {
            self.0.entry(row.account_id).or_default().push(row.policy);
        }
        Ok(())
    }

    pub fn of(&self, account: &AccountId) -> &[ToolPolicy] {
        self.0.get(account).map_or(&[], Vec::as_slice)
    }
}
