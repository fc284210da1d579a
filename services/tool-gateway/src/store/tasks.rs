//! The task rows that tools read: the task, its assignees, its thread, its activities; and agents by name.

use domain::{AccountId, Actor, AgentId, AgentRef, AgentSlug, MessageId, TaskId, TaskStatus};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;
use uuid::Uuid;

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

const TASK_FIND: &str = "
    select display_id, title, description, status, created_at, updated_at from task
    where account_id = $1 and id = $2";

pub(crate) async fn task_find(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Option<TaskRow>, StorageError> {
    let values = [account.into(), task.key().into()];
    tx.one("read task", TASK_FIND, values).await
}

#[derive(Clone, PartialEq, Debug, FromQueryResult)]
pub(crate) struct AgentRow {
    pub id: AgentId,
    pub slug: AgentSlug,
}

const ASSIGNEES: &str = "
    select a.id, a.slug from task_assignee ta
    join agent a on a.account_id = ta.account_id and a.id = ta.agent_id
    where ta.account_id = $1 and ta.task_id = $2 and a.removed_at is null order by a.slug";

pub(crate) async fn assignees(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Vec<AgentRow>, StorageError> {
    let values = [account.into(), task.key().into()];
    tx.rows("read assignees", ASSIGNEES, values).await
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
const MESSAGES_NEWEST: &str = "
    select id, author_kind, author_id, author_name, author_via, left(body, $4) as body, octet_length(body) as body_bytes, created_at,
        asked_rows
    from (
        select m.*, count(*) over () as asked_rows,
            sum(least(octet_length(m.body), $4)) over (rows unbounded preceding) - least(octet_length(m.body), $4)
                as bytes_before
        from (
            select id, author_kind, author_id, author_name, author_via, body, created_at
            from message where account_id = $1 and task_id = $2
            order by created_at desc, id desc limit $3
        ) m
    ) m
    where bytes_before <= $5 order by created_at desc, id desc";

/// A thread's newest messages, newest first, with bodies cut to `body_characters_max`; as many as could fit into
/// `bytes_max`.
pub(crate) async fn messages_newest(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    limit: i64,
    body_characters_max: i32,
    bytes_max: i64,
) -> Result<Vec<MessageRow>, StorageError> {
    let values = [
        account.into(),
        task.key().into(),
        limit.into(),
        body_characters_max.into(),
        bytes_max.into(),
    ];
    tx.rows("read thread", MESSAGES_NEWEST, values).await
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

const ACTIVITIES_NEWEST: &str = concat!(
    "select id, kind, actor_kind, actor_id, actor_name, detail, created_at",
    storage::activities!(),
    " and account_id = $1 and task_id = $2 order by created_at desc, id desc limit $3"
);

pub(crate) async fn activities_newest(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    limit: i64,
) -> Result<Vec<ActivityRow>, StorageError> {
    let values = [account.into(), task.key().into(), limit.into()];
    tx.rows("read activities", ACTIVITIES_NEWEST, values).await
}

/// Relies on the primary key and on agent_slug.
const AGENTS_FIND: &str = "
    select id, slug from agent
    where account_id = $1 and removed_at is null and (id = any($2::uuid[]) or slug = any($3::text[]))";

/// The agents that exist.
pub(crate) async fn agents_find(
    tx: &Tx,
    account: &AccountId,
    named: &[AgentRef],
) -> Result<Vec<AgentRow>, StorageError> {
    let mut ids: Vec<AgentId> = Vec::new();
    let mut slugs: Vec<AgentSlug> = Vec::new();
    for one in named {
        match one {
            AgentRef::Id(id) => ids.push(*id),
            AgentRef::Slug(slug) => slugs.push(slug.clone()),
        }
    }
    let values = [account.into(), ids.into(), slugs.into()];
    tx.rows("find agents", AGENTS_FIND, values).await
}
