//! The context of a task: versions from 1, of which the newest counts. Agents write it by tool, and people by API. A version is never
//! changed; the last [`KEPT`] are kept.
//!
//! Writers of one task wait for each other under a lock of their own: a call holds its session, and who closes a task locks the task
//! before its sessions (ADR 72).

use contracts::event::{Event, TaskContextWritten};
use domain::{AccountId, Actor, ContextNeed, ContextSize, KeptContext, TaskId, TurnId};
use sea_orm::FromQueryResult;
use time::OffsetDateTime;

use crate::{Setting, StorageError, Tx, activity::activity_insert, outbox::Owned};

/// Versions of a task that are kept.
pub const KEPT: i32 = 50;

/// A version.
#[derive(Clone, PartialEq, Debug, FromQueryResult)]
pub struct TaskContext {
    pub version: i32,
    pub body: String,
    #[sea_orm(nested)]
    pub size: ContextSize,
    #[sea_orm(nested(prefix = "author_"))]
    pub author: Actor,
    /// The turn whose agent wrote it.
    pub turn_id: Option<TurnId>,
    pub created_at: OffsetDateTime,
}

/// A task, and the newest version of its context.
#[derive(Clone, PartialEq, Debug, FromQueryResult)]
pub struct ContextOfTask {
    /// As its client spelled it.
    #[sea_orm(from_alias = "display_id")]
    pub task: TaskId,
    #[sea_orm(from_alias = "task_context")]
    pub need: ContextNeed,
    #[sea_orm(nested)]
    pub newest: Option<TaskContext>,
}

impl ContextOfTask {
    /// The newest version; 0: there is none.
    pub fn version(&self) -> i32 {
        self.newest.as_ref().map_or(0, |newest| newest.version)
    }

    /// Whether a call that needs it is refused.
    pub fn is_missing(&self) -> bool {
        self.newest.is_none() && self.need == ContextNeed::Required
    }
}

/// Relies on the primary keys.
pub const CONTEXT_FIND: &str = "
    select k.display_id, k.task_context, c.version, c.body, c.characters, c.cut_characters, c.author_kind, c.author_id, c.author_name,
           null::text as author_via, c.turn_id, c.created_at
    from (select * from task k where k.account_id = $1 and k.id = $2 offset 0) k
    left join lateral (
        select * from task_context c where c.account_id = k.account_id and c.task_id = k.id
        order by c.account_id desc, c.task_id desc, c.version desc limit 1) c on true";

/// The newest version of `$3` becomes the first of `$2`, if that has none. Relies on the primary key.
pub const CONTEXT_COPY: &str = "
    insert into task_context (account_id, task_id, version, body, characters, cut_characters, author_kind, author_id, author_name, created_at)
    select c.account_id, $2, 1, c.body, c.characters, c.cut_characters, c.author_kind, c.author_id, c.author_name, $4
    from (
        select * from task_context c where c.account_id = $1 and c.task_id = $3
        order by c.account_id desc, c.task_id desc, c.version desc limit 1) c
    where not exists (select from task_context o where o.account_id = $1 and o.task_id = $2)
    on conflict do nothing";

/// The task's context. None: there is no such task.
pub async fn task_context_find(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
) -> Result<Option<ContextOfTask>, StorageError> {
    let values = [account.into(), task.key().into()];
    tx.one("read task context", CONTEXT_FIND, values).await
}

/// Relies on the primary key.
pub const CONTEXT_VERSION: &str = "
    select version, body, characters, cut_characters, author_kind, author_id, author_name, null::text as author_via, turn_id, created_at
    from task_context where account_id = $1 and task_id = $2 and version = $3";

/// One version of a task's context. None: it is not there, or no more.
pub async fn task_context_version(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    version: i32,
) -> Result<Option<TaskContext>, StorageError> {
    let values = [account.into(), task.key().into(), version.into()];
    tx.one("read version of task context", CONTEXT_VERSION, values).await
}

const CONTEXT_LOCK: &str = "select pg_advisory_xact_lock(hashtextextended('context of ' || $1 || ' ' || $2, 0))";

/// The same, after all who were writing it: no other version is written until the transaction ends.
pub async fn task_context_lock(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
) -> Result<Option<ContextOfTask>, StorageError> {
    let values = [account.into(), task.key().into()];
    tx.execute("lock task context", CONTEXT_LOCK, values).await?;
    task_context_find(tx, account, task).await
}

const CONTEXT_INSERT: &str = "
    insert into task_context (account_id, task_id, version, body, characters, cut_characters, author_kind, author_id, author_name,
                              turn_id, created_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
/// Relies on the primary key.
pub const CONTEXTS_REMOVE: &str = "delete from task_context where account_id = $1 and task_id = $2 and version <= $3";

/// Writes the next version, and removes the oldest. Gives the version and its event. The caller holds the lock of
/// [`task_context_lock`], which gave `of`.
pub async fn task_context_write(
    tx: &Tx,
    (account, of): (&AccountId, &ContextOfTask),
    kept: KeptContext<'_>,
    (by, turn_id): (&Actor, Option<TurnId>),
    setting: &Setting<'_>,
) -> Result<(TaskContext, Owned), StorageError> {
    let (task, version, size) = (&of.task, of.version() + 1, kept.size);
    let values = [
        account.into(),
        task.key().into(),
        version.into(),
        kept.body.into(),
        size.characters.into(),
        size.cut_characters.into(),
        by.kind.into(),
        by.id.as_str().into(),
        by.name.as_str().into(),
        turn_id.into(),
        setting.now.into(),
    ];
    tx.execute("write task context", CONTEXT_INSERT, values).await?;
    if version > KEPT {
        let values = [account.into(), task.key().into(), (version - KEPT).into()];
        tx.execute("remove old task contexts", CONTEXTS_REMOVE, values).await?;
    }
    let written = TaskContextWritten {
        version,
        characters: size.characters,
        cut_characters: size.cut_characters,
        by: by.clone(),
        turn_id,
    };
    let detail = serde_json::json!({"version": version, "characters": size.characters});
    activity_insert(tx, (account, task), "task_context.written", by, detail, setting.now).await?;
    let id = format!("{}:{version}", task.key().as_str());
    let event = setting.event(account, Some(task), &id, Event::TaskContextWritten(written));
    let context = TaskContext {
        version,
        body: kept.body.to_owned(),
        size,
        author: by.clone(),
        turn_id,
        created_at: setting.now,
    };
    Ok((context, event))
}
