//! The task rows that tools read: the task, its assignees, its thread, its activities; and agents by name.

use domain::{AccountId, Actor, AgentId, AgentRef, AgentSlug, MessageId, TaskId, TaskStatus};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, statement::column};
use time::OffsetDateTime;
use uuid::Uuid;

use super::each;

/// A task by its account.
pub(crate) type TaskName = (AccountId, TaskId);

/// A task for an agent.
#[derive(Debug, FromQueryResult)]
pub(crate) struct TaskRow {
    #[sea_orm(from_alias = "display_id")]
    pub id: TaskId,
    pub title: String,
    pub description: String,
    pub status: TaskStatus,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

/// Relies on the primary key.
pub const TASKS_FIND: &str = "
    select w.place, t.display_id, t.title, t.description, t.status, t.created_at, t.updated_at
    from unnest($1::text[], $2::text[]) with ordinality as w (account_id, id, place)
    cross join lateral (select * from task t where t.account_id = w.account_id and t.id = w.id limit 1) t";

pub(crate) async fn tasks_find(tx: &Tx, names: &[TaskName]) -> Result<Vec<Option<TaskRow>>, StorageError> {
    let values = [column(names, |name| name.0.clone()), column(names, |name| name.1.key())];
    let rows = each(tx, "read tasks", TASKS_FIND, names.len(), values).await?;
    Ok(rows.into_iter().map(|rows| rows.into_iter().next()).collect())
}

#[derive(Clone, PartialEq, Debug, FromQueryResult)]
pub(crate) struct AgentRow {
    pub id: AgentId,
    pub slug: AgentSlug,
}

/// Relies on the primary keys.
pub const ASSIGNEES: &str = "
    select w.place, a.id, a.slug
    from unnest($1::text[], $2::text[]) with ordinality as w (account_id, task_id, place)
    cross join lateral (
        select a.id, a.slug, a.removed_at from task_assignee ta
        join agent a on a.account_id = any (array[ta.account_id]) and a.id = ta.agent_id
        where ta.account_id = w.account_id and ta.task_id = w.task_id offset 0) a
    where a.removed_at is null order by w.place, a.slug";

pub(crate) async fn assignees(tx: &Tx, names: &[TaskName]) -> Result<Vec<Vec<AgentRow>>, StorageError> {
    let values = [column(names, |name| name.0.clone()), column(names, |name| name.1.key())];
    each(tx, "read assignees", ASSIGNEES, names.len(), values).await
}

/// The newest rows of a task, at most so many.
#[derive(Clone, Debug)]
pub(crate) struct Newest {
    pub task: TaskName,
    pub rows: i64,
}

fn newest(asked: &[Newest]) -> [sea_orm::Value; 3] {
    [
        column(asked, |one| one.task.0.clone()),
        column(asked, |one| one.task.1.key()),
        column(asked, |one| one.rows),
    ]
}

#[derive(Debug, FromQueryResult)]
pub(crate) struct MessageRow {
    pub id: MessageId,
    #[sea_orm(nested(prefix = "author_"))]
    pub author: Actor,
    /// The beginning of a body that exceeds the limit.
    pub body: String,
    pub body_bytes: i32,
    pub created_at: OffsetDateTime,
    /// Number of rows within the limit, including those that are left out.
    pub asked_rows: i64,
}

/// `$4` bounds the characters of a body and estimates its shown bytes; `$5` bounds the sum. Relies on message_thread.
pub const MESSAGES_NEWEST: &str = "
    select w.place, m.*
    from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality as w (account_id, task_id, limit_rows, place)
    cross join lateral (
        select id, author_kind, author_id, author_name, author_via, left(body, $4) as body, octet_length(body) as body_bytes,
            created_at, asked_rows
        from (
            select m.*, count(*) over () as asked_rows,
                sum(least(octet_length(m.body), $4)) over (rows unbounded preceding) - least(octet_length(m.body), $4)
                    as bytes_before
            from (
                select id, author_kind, author_id, author_name, author_via, body, created_at
                from message where account_id = w.account_id and task_id = w.task_id
                order by created_at desc, id desc limit w.limit_rows
            ) m
        ) m
        where bytes_before <= $5) m
    order by w.place, m.created_at desc, m.id desc";

/// Each thread's newest messages, newest first, with bodies cut to `body_characters_max`; as many as could fit into
/// `bytes_max`.
pub(crate) async fn messages_newest(
    tx: &Tx,
    asked: &[Newest],
    body_characters_max: i32,
    bytes_max: i64,
) -> Result<Vec<Vec<MessageRow>>, StorageError> {
    let values = newest(asked)
        .into_iter()
        .chain([body_characters_max.into(), bytes_max.into()]);
    each(tx, "read threads", MESSAGES_NEWEST, asked.len(), values).await
}

#[derive(Debug, FromQueryResult)]
pub(crate) struct ActivityRow {
    pub id: Uuid,
    pub kind: String,
    pub actor_kind: String,
    pub actor_id: String,
    pub actor_name: String,
    pub detail: serde_json::Value,
    pub created_at: OffsetDateTime,
}

pub const ACTIVITIES_NEWEST: &str = concat!(
    "
    select w.place, a.*
    from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality as w (account_id, task_id, limit_rows, place)
    cross join lateral (
        select id, kind, actor_kind, actor_id, actor_name, detail, created_at",
    storage::activities!(),
    " and account_id = w.account_id and task_id = w.task_id order by created_at desc, id desc limit w.limit_rows) a
    order by w.place, a.created_at desc, a.id desc"
);

/// Each task's newest activities, newest first.
pub(crate) async fn activities_newest(tx: &Tx, asked: &[Newest]) -> Result<Vec<Vec<ActivityRow>>, StorageError> {
    each(tx, "read activities", ACTIVITIES_NEWEST, asked.len(), newest(asked)).await
}

/// Agents of an account, by id or by slug.
#[derive(Clone, Debug)]
pub(crate) struct NamedAgents {
    pub account: AccountId,
    pub named: Vec<AgentRef>,
}

/// Relies on the primary key, and on agent_slug or all agents of the account: both cost the same while there are few.
const AGENTS_FIND: &str = "
    select w.place, i.id, i.slug from unnest($1::bigint[], $2::text[], $3::uuid[]) as w (place, account_id, id)
    cross join lateral (select * from agent i where i.account_id = w.account_id and i.id = w.id offset 0) as i
    where i.removed_at is null
    union all
    select w.place, n.id, n.slug from unnest($1::bigint[], $2::text[], $4::text[]) as w (place, account_id, slug)
    cross join lateral (
        select * from agent n where n.account_id = w.account_id and n.slug = w.slug and n.removed_at is null offset 0) as n";

/// The named agents that exist, of each question.
pub(crate) async fn agents_find(tx: &Tx, asked: &[NamedAgents]) -> Result<Vec<Vec<AgentRow>>, StorageError> {
    let named: Vec<(i64, &AccountId, &AgentRef)> = (1..)
        .zip(asked)
        .flat_map(|(place, one)| one.named.iter().map(move |agent| (place, &one.account, agent)))
        .collect();
    // No agent has the id nil or the slug "".
    let id_and_slug = |agent: &AgentRef| match agent {
        AgentRef::Id(id) => (id.uuid(), String::new()),
        AgentRef::Slug(slug) => (Uuid::nil(), slug.to_string()),
    };
    let values = [
        column(&named, |(place, ..)| *place),
        column(&named, |(_, account, _)| (*account).clone()),
        column(&named, |(.., agent)| id_and_slug(agent).0),
        column(&named, |(.., agent)| id_and_slug(agent).1),
    ];
    each(tx, "find agents", AGENTS_FIND, asked.len(), values).await
}
