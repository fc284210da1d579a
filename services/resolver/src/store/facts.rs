//! Looks up the facts of a batch in one round trip.

use std::error::Error;

use contracts::content::ContentHash;
use domain::{AccountId, AgentId, AgentRef, AgentSlug, MessageId, NotificationId, Owner, TaskId, UserId};
use sea_orm::{FromQueryResult, Value};
use storage::{
    StorageError, Tx,
    statement::{column, pairs},
};
use uuid::Uuid;

use crate::intake::facts::{BatchFacts, Fact, Known, Questions};

#[derive(FromQueryResult)]
struct FactRow {
    fact: String,
    account_id: AccountId,
    name: String,
    value: String,
    id: Option<Uuid>,
    hash: Option<Vec<u8>>,
    edited: Option<Vec<u8>>,
}

/// Relies on the primary keys of account, agent, task, message and notification, on agent_slug, and on the primary key
/// of task_assignee. The account comes first: the other facts are joined to it. `offset 0` keeps the planner from
/// turning a look-up per row of the batch into a scan of the table.
pub const FACTS_FIND: &str = "
    select 'account' as fact, a.id as account_id, a.session_scope as name, a.auto_create_tasks::text as value,
           null::uuid as id, null::bytea as hash, null::bytea as edited
    from unnest($1::text[]) as w (id)
    cross join lateral (select * from account a where a.id = w.id offset 0) as a
    union all
    select 'agent', a.account_id, '', '', a.id, null, null
    from unnest($2::text[], $3::uuid[]) as w (account_id, id)
    cross join lateral (select * from agent a where a.account_id = w.account_id and a.id = w.id offset 0) as a
    where a.removed_at is null
    union all
    select 'slug', a.account_id, a.slug, '', a.id, null, null
    from unnest($4::text[], $5::text[]) as w (account_id, slug)
    cross join lateral (
        select * from agent a
        where a.account_id = w.account_id and a.slug between w.slug and w.slug and a.removed_at is null
        order by a.account_id, a.slug offset 0) as a
    union all
    select 'task', t.account_id, t.display_id, '', null, null, null
    from unnest($6::text[], $7::text[]) as w (account_id, id)
    cross join lateral (select * from task t where t.account_id = w.account_id and t.id = w.id offset 0) as t
    union all
    select 'assignee', s.account_id, s.task_id, '', s.agent_id, null, null
    from unnest($8::text[], $9::text[]) as w (account_id, task_id)
    cross join lateral (
        select * from task_assignee s where s.account_id = w.account_id and s.task_id = w.task_id offset 0) as s
    cross join lateral (select * from agent a where a.account_id = s.account_id and a.id = s.agent_id offset 0) as a
    where a.removed_at is null
    union all
    select 'coordinator', a.id, a.coordinator_task, '', s.agent_id, null, null
    from unnest($1::text[]) as w (id)
    cross join lateral (select * from account a where a.id = w.id and a.coordinator_task is not null offset 0) as a
    cross join lateral (
        select * from task_assignee s where s.account_id = a.id and s.task_id = a.coordinator_task offset 0) as s
    cross join lateral (select * from agent g where g.account_id = s.account_id and g.id = s.agent_id offset 0) as g
    where g.removed_at is null
    union all
    select 'message', m.account_id, m.task_id, '', m.id, null, null
    from unnest($10::text[], $11::uuid[]) as w (account_id, id)
    cross join lateral (select * from message m where m.account_id = w.account_id and m.id = w.id offset 0) as m
    union all
    select 'notification', n.account_id, n.id, n.state, n.agent_id, n.content_hash, n.edited_hash
    from unnest($12::text[], $13::text[]) as w (account_id, id)
    cross join lateral (
        select n.account_id, n.id, n.state, n.agent_id, n.content_hash, n.edited_hash from notification n
        where n.account_id = w.account_id and n.id = w.id offset 0) as n";

/// The agents of orchestrators, by their owners: of members who have one, and of accounts (an empty name) that have enabled theirs. Relies on the
/// primary keys and on agent_orchestrator.
pub const ORCHESTRATORS_FIND: &str = "
    select 'orchestrator' as fact, w.account_id, w.user_id as name, '' as value, g.id, null::bytea as hash, null::bytea as edited
    from unnest($1::text[], $2::text[]) as w (account_id, user_id)
    cross join lateral (
        (select i.account_id from orchestrator_identity i
         where w.user_id <> '' and i.account_id = w.account_id and i.owner = w.user_id
           and exists (
             select from member m
             where m.account_id = i.account_id and m.user_id = i.owner and coalesce(m.removed_at, 'infinity') = 'infinity' offset 0)
         offset 0)
        union all
        (select i.account_id from orchestrator_identity i
         where w.user_id = '' and i.account_id = w.account_id and i.owner = '' and i.enabled offset 0)) o
    cross join lateral (
        select g.id from agent g where g.account_id = o.account_id and g.kind = 'orchestrator' limit 1) g";

/// The agents of orchestrators that answer guests: of members whose orchestrator others may ask, for other members. Relies on what
/// [`ORCHESTRATORS_FIND`] does.
pub const GUESTS_FIND: &str = "
    select 'guest' as fact, w.account_id, w.user_id as name, w.guest_id as value, g.id, null::bytea as hash, null::bytea as edited
    from unnest($1::text[], $2::text[], $3::text[]) as w (account_id, user_id, guest_id)
    cross join lateral (
        select i.account_id from orchestrator_identity i
        where i.account_id = w.account_id and i.owner = w.user_id and i.reachable <> 'off' and w.guest_id <> w.user_id
          and exists (
            select from member m
            where m.account_id = i.account_id and m.user_id = i.owner and coalesce(m.removed_at, 'infinity') = 'infinity' offset 0)
          and exists (
            select from member m
            where m.account_id = i.account_id and m.user_id = w.guest_id and coalesce(m.removed_at, 'infinity') = 'infinity' offset 0)
        offset 0) o
    cross join lateral (
        select g.id from agent g where g.account_id = o.account_id and g.kind = 'orchestrator' limit 1) g";

/// Adds the rows of the database to the facts.
pub async fn facts_find(tx: &Tx, questions: &Questions, facts: &mut BatchFacts) -> Result<(), StorageError> {
    const ATTEMPT: &str = "look up the facts of a batch";
    let accounts: Vec<AccountId> = questions.accounts.iter().cloned().collect();
    let (agent_accounts, agents) = pairs(&questions.agents);
    let (slug_accounts, slugs) = pairs(&questions.slugs);
    let (task_accounts, tasks) = pairs(&questions.tasks);
    let (assigned_accounts, assigned) = pairs(&questions.assigned);
    let (message_accounts, messages) = pairs(&questions.messages);
    let (notification_accounts, notifications) = pairs(&questions.notifications);
    let values: [Value; 13] = [
        accounts.into(),
        agent_accounts.into(),
        agents.into(),
        slug_accounts.into(),
        slugs.into(),
        task_accounts.into(),
        tasks.into(),
        assigned_accounts.into(),
        assigned.into(),
        message_accounts.into(),
        messages.into(),
        notification_accounts.into(),
        notifications.into(),
    ];
    let mut rows: Vec<FactRow> = tx.rows(ATTEMPT, FACTS_FIND, values).await?;
    if !questions.owners.is_empty() {
        let owner = |owner: &Owner| owner.user().map_or_else(String::new, ToString::to_string);
        let named: Vec<(AccountId, String)> = questions
            .owners
            .iter()
            .map(|(account, of)| (account.clone(), owner(of)))
            .collect();
        let (accounts, users) = pairs(&named);
        let values: [Value; 2] = [accounts.into(), users.into()];
        rows.extend(tx.rows::<FactRow>(ATTEMPT, ORCHESTRATORS_FIND, values).await?);
    }
    if !questions.guests.is_empty() {
        let guests: Vec<_> = questions.guests.iter().collect();
        let values: [Value; 3] = [
            column(&guests, |(account, _)| account.clone()),
            column(&guests, |(_, (owner, _))| owner.to_string()),
            column(&guests, |(_, (_, guest))| guest.to_string()),
        ];
        rows.extend(tx.rows::<FactRow>(ATTEMPT, GUESTS_FIND, values).await?);
    }
    for row in rows {
        let fact = row.read().map_err(|what| StorageError::unreadable(ATTEMPT, what))?;
        facts.add(&row.account_id, fact);
    }
    Ok(())
}

impl FactRow {
    fn read(&self) -> Result<Fact, Box<dyn Error>> {
        let id = || self.id.ok_or_else(|| format!("{} without an id", self.fact));
        let task = || TaskId::parse(&self.name);
        Ok(match self.fact.as_str() {
            "account" => Fact::Account {
                session_scope: self.name.parse()?,
                auto_create_tasks: self.value == "true",
            },
            "agent" => Fact::Agent(AgentRef::Id(AgentId(id()?)), AgentId(id()?)),
            "slug" => Fact::Agent(AgentRef::Slug(AgentSlug::parse(&self.name)?), AgentId(id()?)),
            "task" => Fact::Task(task()?),
            "assignee" => Fact::Assignee(task()?, AgentId(id()?)),
            "coordinator" => Fact::Coordinator(task()?, AgentId(id()?)),
            "message" => Fact::Message(MessageId(id()?), task()?),
            "notification" => {
                let known = Known {
                    hash: self
                        .hash
                        .as_deref()
                        .and_then(ContentHash::from_bytes)
                        .ok_or("an invalid content hash")?,
                    edited: self.edited.as_deref().and_then(ContentHash::from_bytes),
                    agent: self.id.map(AgentId),
                    state: self.value.parse()?,
                };
                Fact::Notification(NotificationId::parse(&self.name)?, known)
            }
            "orchestrator" => {
                let owner = match self.name.as_str() {
                    "" => Owner::Account,
                    user => Owner::User(UserId::parse(user)?),
                };
                Fact::Orchestrator(owner, AgentId(id()?))
            }
            "guest" => {
                let guest = (UserId::parse(&self.name)?, UserId::parse(&self.value)?);
                Fact::Guest(guest, AgentId(id()?))
            }
            other => return Err(format!("an unknown kind of fact: {other}").into()),
        })
    }
}
