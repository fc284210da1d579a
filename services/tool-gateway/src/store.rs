//! Every query of this service: connection first, account always there.
//!
//! Order of locks, the same for every call: its own record, then (for a tool that moves a task) the task, then sessions
//! by id. Whoever closes sessions takes the task before them as well, so two that meet wait and do not block each other.

use domain::{
    AccountId, AgentId, AgentRef, AgentSlug, CloseReason, Fence, Generation, SessionId, SessionKey, TaskId, TaskStatus,
    ToolCallState, TurnId, TurnState,
};
use sea_orm::{ConnectionTrait, FromQueryResult};
use storage::{StorageError, Tx, error::Attempt, statement};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::call::{Asked, Closed, Facts, Origin, Record, Turn, cut};

/// A stranger's name of a tool is not kept longer than this.
const NAME_BYTES_MAX: usize = 128;

/// Records the call if it is new and its session is there. Of two that arrive together, the second waits here for the
/// first one's end. A session without an agent makes no calls.
const CALL_INSERT: &str = "
    insert into tool_call (account_id, id, session_id, turn_id, generation, fence, call_id, ordinal, agent_id, name,
                           arguments, state, started_at)
    select s.account_id, $3, s.id, $4, coalesce($5, s.generation), coalesce($6, s.fence), $7, $8, s.agent_id, $9,
           $10, 'running', clock_timestamp()
    from session s where s.account_id = $1 and s.id = $2 and s.agent_id is not null
    on conflict do nothing";

/// `false`: there is such a record already, or no such session.
pub(crate) async fn call_insert(tx: &Tx, asked: &Asked, arguments_bytes_max: usize) -> Result<bool, StorageError> {
    let claims = match &asked.origin {
        Origin::Turn(claims) => Some(claims),
        Origin::Http => None,
    };
    let values = [
        asked.account.as_str().into(),
        asked.session.uuid().into(),
        asked.id().into(),
        claims.map(|claims| claims.turn.uuid()).into(),
        claims.map(|claims| claims.generation.0).into(),
        claims.map(|claims| claims.fence.0).into(),
        storable(&asked.call_id.0, usize::MAX).into(),
        asked.ordinal.into(),
        storable(&asked.name, NAME_BYTES_MAX).into(),
        storable(&asked.arguments, arguments_bytes_max).into(),
    ];
    let inserted = tx
        .execute_raw(statement(CALL_INSERT, values))
        .await
        .attempt("record tool call")?;
    Ok(inserted.rows_affected() == 1)
}

/// Postgres keeps no NUL in a text.
fn storable(text: &str, bytes_max: usize) -> String {
    cut(text, bytes_max).replace('\0', "\u{fffd}")
}

/// Whether what is asked now is what was recorded under the same id.
pub(crate) fn is_same_request(asked: &Asked, record: &Record, arguments_bytes_max: usize) -> bool {
    record.name == storable(&asked.name, NAME_BYTES_MAX)
        && record.arguments == storable(&asked.arguments, arguments_bytes_max)
}

#[derive(FromQueryResult)]
struct CallRow {
    name: String,
    arguments: String,
    state: String,
    late: bool,
    result: Option<String>,
    started_at: OffsetDateTime,
    finished_at: Option<OffsetDateTime>,
}

const CALL_FIND: &str = "
    select name, arguments, state, late, result, started_at, finished_at from tool_call
    where account_id = $1 and id = $2";

pub(crate) async fn call_find(tx: &Tx, asked: &Asked) -> Result<Option<Record>, StorageError> {
    let values = [asked.account.as_str().into(), asked.id().into()];
    let row = CallRow::find_by_statement(statement(CALL_FIND, values));
    let Some(row) = row.one(&**tx).await.attempt("read tool call")? else {
        return Ok(None);
    };
    Ok(Some(Record {
        state: word("read tool call", &row.state, ToolCallState::parse)?,
        name: row.name,
        arguments: row.arguments,
        late: row.late,
        result: row.result.unwrap_or_default(),
        finished_at: row.finished_at.unwrap_or(row.started_at),
    }))
}

#[derive(FromQueryResult)]
struct Counted {
    count: i64,
}

/// Relies on tool_call_turn.
const CALLS_BEFORE: &str = "
    select count(*) as count from tool_call
    where account_id = $1 and turn_id = $2 and ordinal > 0 and ordinal < $3";

/// How many of the turn's calls before this one are over. Calls are seen once their transaction has committed.
pub(crate) async fn calls_before(
    tx: &Tx,
    account: &AccountId,
    turn: TurnId,
    ordinal: i32,
) -> Result<i64, StorageError> {
    let values = [account.as_str().into(), turn.uuid().into(), ordinal.into()];
    let counted = Counted::find_by_statement(statement(CALLS_BEFORE, values));
    let counted = counted.one(&**tx).await.attempt("count tool calls")?;
    Ok(counted.map_or(0, |counted| counted.count))
}

const CALL_FINISH: &str = "
    update tool_call set state = $3, late = $4, result = $5, turn_id = coalesce(turn_id, $6), finished_at = $7
    where account_id = $1 and id = $2";

/// Writes what it came to. `turn`: the one that a call over HTTP happened in.
pub(crate) async fn call_finish(
    tx: &Tx,
    asked: &Asked,
    record: &Record,
    turn: Option<TurnId>,
) -> Result<(), StorageError> {
    let values = [
        asked.account.as_str().into(),
        asked.id().into(),
        record.state.as_str().into(),
        record.late.into(),
        record.result.as_str().into(),
        turn.map(TurnId::uuid).into(),
        record.finished_at.into(),
    ];
    tx.execute_raw(statement(CALL_FINISH, values))
        .await
        .attempt("finish tool call")?;
    Ok(())
}

/// Shared: calls of one session need not wait for each other, and nobody closes or claims it meanwhile.
const SESSION_LOCK: &str = "select id from session where account_id = $1 and id = $2 for share";

/// Keeps the session as it is until the end of the transaction.
pub(crate) async fn session_lock(tx: &Tx, asked: &Asked) -> Result<(), StorageError> {
    let values = [asked.account.as_str().into(), asked.session.uuid().into()];
    tx.execute_raw(statement(SESSION_LOCK, values))
        .await
        .attempt("lock session")?;
    Ok(())
}

const TASK_LOCK: &str = "select id from task where account_id = $1 and id = $2 for no key update";
/// Relies on session_active_task, notification_queue and the primary key. Those that a closer takes, in its order
/// (storage::lifecycle), and the caller's own.
const SESSIONS_LOCK: &str = "
    select s.id from session s
    where s.account_id = $1
      and s.id in (select $2::uuid
                   union all
                   select id from session where account_id = $1 and task_id = $3 and closed_at is null
                   union all
                   select session_id from notification where account_id = $1 and task_id = $3 and state = 'queued')
    order by s.id for no key update of s";

/// The same for a call that moves a task, and may close its sessions: with weaker locks first, two of them would wait
/// for each other.
pub(crate) async fn task_and_sessions_lock(tx: &Tx, asked: &Asked, task: &TaskId) -> Result<(), StorageError> {
    let (account, key) = (asked.account.as_str(), task.key());
    tx.execute_raw(statement(TASK_LOCK, [account.into(), key.as_str().into()]))
        .await
        .attempt("lock task")?;
    let values = [account.into(), asked.session.uuid().into(), key.as_str().into()];
    tx.execute_raw(statement(SESSIONS_LOCK, values))
        .await
        .attempt("lock sessions")?;
    Ok(())
}

#[derive(FromQueryResult)]
struct FactsRow {
    key: String,
    generation: i32,
    fence: i64,
    is_closed: bool,
    close_reason: Option<String>,
    session_task: Option<String>,
    agent_id: Uuid,
    agent_slug: String,
    agent_name: String,
    coordinator_task: Option<String>,
    coordinates: bool,
    turn_id: Option<Uuid>,
    turn_session: Option<Uuid>,
    turn_state: Option<String>,
    turn_fence: Option<i64>,
    turn_task: Option<String>,
    turn_hops: Option<i32>,
    newest_hops: Option<i32>,
    now: OffsetDateTime,
}

/// Primary keys and turn_number only. Tasks as their client spelled them: subjects and texts carry them that way.
const FACTS: &str = concat!(
    "
    select s.key, s.generation, s.fence, s.closed_at is not null as is_closed, s.close_reason,
           st.display_id as session_task, a.id as agent_id, a.slug as agent_slug, a.name as agent_name,
           acc.coordinator_task, ",
    storage::coordinates!("acc", "a.id"),
    " as coordinates, t.id as turn_id, t.session_id as turn_session, t.state as turn_state,
           t.fence as turn_fence, tt.display_id as turn_task, t.hops as turn_hops,
           (select l.hops from turn l where l.account_id = s.account_id and l.session_id = s.id
            order by l.number desc limit 1) as newest_hops, clock_timestamp() as now
    from session s
    join account acc on acc.id = s.account_id
    join agent a on a.account_id = s.account_id and a.id = s.agent_id
    left join task st on st.account_id = s.account_id and st.id = s.task_id
    left join turn t on t.account_id = s.account_id and t.id = coalesce($3, s.active_turn_id)
    left join task tt on tt.account_id = s.account_id and tt.id = t.task_id
    where s.account_id = $1 and s.id = $2"
);

/// What is true of the session and the turn, and the database's time. Read after the lock, in a statement of its own:
/// only a fresh snapshot shows what the lock waited for.
pub(crate) async fn facts(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    turn: Option<TurnId>,
) -> Result<Option<(Facts, OffsetDateTime)>, StorageError> {
    const ATTEMPT: &str = "read session";
    let values = [
        account.as_str().into(),
        session.uuid().into(),
        turn.map(TurnId::uuid).into(),
    ];
    let row = FactsRow::find_by_statement(statement(FACTS, values));
    let Some(row) = row.one(&**tx).await.attempt(ATTEMPT)? else {
        return Ok(None);
    };
    let closed = row
        .is_closed
        .then(|| Closed(row.close_reason.as_deref().and_then(CloseReason::parse)));
    let turn_row = match (row.turn_id, row.turn_session, &row.turn_state, row.turn_fence) {
        (Some(id), Some(session), Some(state), Some(fence)) => Some(Turn {
            id: TurnId(id),
            session: SessionId(session),
            state: word(ATTEMPT, state, TurnState::parse)?,
            fence: Fence(fence),
            task: task(ATTEMPT, row.turn_task)?,
            hops: u16::try_from(row.turn_hops.unwrap_or(0)).unwrap_or(u16::MAX),
        }),
        _ => None,
    };
    let facts = Facts {
        session_key: row.key,
        generation: Generation(row.generation),
        fence: Fence(row.fence),
        closed,
        agent: AgentId(row.agent_id),
        agent_slug: row.agent_slug,
        agent_name: row.agent_name,
        session_task: task(ATTEMPT, row.session_task)?,
        coordinator_task: task(ATTEMPT, row.coordinator_task)?,
        coordinates: row.coordinates,
        newest_hops: u16::try_from(row.newest_hops.unwrap_or(0)).unwrap_or(u16::MAX),
        // Over HTTP, a turn that has just ended is none.
        turn: turn_row.filter(|row| turn.is_some() || !row.state.is_over()),
    };
    Ok(Some((facts, row.now)))
}

#[derive(FromQueryResult)]
struct SessionRow {
    id: Uuid,
}

/// Relies on session_key_unique.
const SESSION_FIND: &str = "select id from session where account_id = $1 and key = $2 and agent_id is not null";

/// The session of this key, open or closed, whoever held it before: keys are never reused.
pub(crate) async fn session_find(
    tx: &Tx,
    account: &AccountId,
    key: &SessionKey,
) -> Result<Option<SessionId>, StorageError> {
    let values = [account.as_str().into(), key.to_string().into()];
    let row = SessionRow::find_by_statement(statement(SESSION_FIND, values));
    Ok(row
        .one(&**tx)
        .await
        .attempt("find session")?
        .map(|row| SessionId(row.id)))
}

/// A task as an agent is shown it.
#[derive(Debug, FromQueryResult)]
pub(crate) struct TaskRow {
    pub display_id: String,
    pub title: String,
    pub description: String,
    pub status: String,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

const TASK_FIND: &str = "
    select display_id, title, description, status, created_at, updated_at from task
    where account_id = $1 and id = $2";

pub(crate) async fn task_find(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Option<TaskRow>, StorageError> {
    let values = [account.as_str().into(), task.key().as_str().into()];
    let row = TaskRow::find_by_statement(statement(TASK_FIND, values));
    row.one(&**tx).await.attempt("read task")
}

impl TaskRow {
    pub(crate) fn status(&self) -> Result<TaskStatus, StorageError> {
        word("read task", &self.status, TaskStatus::parse)
    }

    pub(crate) fn id(&self) -> Result<TaskId, StorageError> {
        TaskId::parse(&self.display_id).map_err(|error| StorageError::unreadable("read task", error))
    }
}

#[derive(Debug, FromQueryResult)]
pub(crate) struct AgentRow {
    pub id: Uuid,
    pub slug: String,
}

const ASSIGNEES: &str = "
    select a.id, a.slug from task_assignee ta
    join agent a on a.account_id = ta.account_id and a.id = ta.agent_id
    where ta.account_id = $1 and ta.task_id = $2 and a.removed_at is null order by a.slug";

pub(crate) async fn assignees(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Vec<AgentRow>, StorageError> {
    let values = [account.as_str().into(), task.key().as_str().into()];
    let rows = AgentRow::find_by_statement(statement(ASSIGNEES, values));
    rows.all(&**tx).await.attempt("read assignees")
}

#[derive(Debug, FromQueryResult)]
pub(crate) struct MessageRow {
    pub id: Uuid,
    pub author_kind: String,
    pub author_id: String,
    pub author_name: String,
    /// Its beginning, when it is longer than what was asked for.
    pub body: String,
    pub body_bytes: i32,
    pub created_at: OffsetDateTime,
}

/// Relies on message_thread.
const MESSAGES_NEWEST: &str = "
    select id, author_kind, author_id, author_name, left(body, $4) as body, octet_length(body) as body_bytes, created_at
    from message where account_id = $1 and task_id = $2
    order by created_at desc, id desc limit $3";

/// A thread's newest messages, newest first, bodies of at most so many characters.
pub(crate) async fn messages_newest(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    limit: i64,
    body_characters_max: i32,
) -> Result<Vec<MessageRow>, StorageError> {
    let values = [
        account.as_str().into(),
        task.key().as_str().into(),
        limit.into(),
        body_characters_max.into(),
    ];
    let rows = MessageRow::find_by_statement(statement(MESSAGES_NEWEST, values));
    rows.all(&**tx).await.attempt("read thread")
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

/// Relies on activity_newest.
const ACTIVITIES_NEWEST: &str = "
    select id, kind, actor_kind, actor_id, actor_name, detail, created_at
    from activity where account_id = $1 and task_id = $2
    order by created_at desc, id desc limit $3";

pub(crate) async fn activities_newest(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    limit: i64,
) -> Result<Vec<ActivityRow>, StorageError> {
    let values = [account.as_str().into(), task.key().as_str().into(), limit.into()];
    let rows = ActivityRow::find_by_statement(statement(ACTIVITIES_NEWEST, values));
    rows.all(&**tx).await.attempt("read activities")
}

/// Relies on the primary key and on agent_slug.
const AGENTS_FIND: &str = "
    select id, slug from agent
    where account_id = $1 and removed_at is null and (id = any($2::uuid[]) or slug = any($3::text[]))";

/// Those of the named agents that are there.
pub(crate) async fn agents_find(
    tx: &Tx,
    account: &AccountId,
    named: &[AgentRef],
) -> Result<Vec<(AgentId, AgentSlug)>, StorageError> {
    let mut ids: Vec<Uuid> = Vec::new();
    let mut slugs: Vec<String> = Vec::new();
    for one in named {
        match one {
            AgentRef::Id(id) => ids.push(id.uuid()),
            AgentRef::Slug(slug) => slugs.push(slug.as_str().to_owned()),
        }
    }
    let values = [account.as_str().into(), ids.into(), slugs.into()];
    let rows = AgentRow::find_by_statement(statement(AGENTS_FIND, values));
    rows.all(&**tx)
        .await
        .attempt("find agents")?
        .into_iter()
        .map(|row| {
            let slug = AgentSlug::parse(&row.slug).map_err(|error| StorageError::unreadable("find agents", error))?;
            Ok((AgentId(row.id), slug))
        })
        .collect()
}

/// Opens a savepoint and gives the statements after it a time limit of their own.
pub(crate) async fn savepoint(tx: &Tx, statement_timeout_ms: u64) -> Result<(), StorageError> {
    let sql = format!("savepoint tool; set local statement_timeout = {statement_timeout_ms}");
    tx.execute_unprepared(&sql).await.attempt("begin tool").map(|_| ())
}

/// Undoes what the tool did, its error state and its time limit.
pub(crate) async fn savepoint_rollback(tx: &Tx) -> Result<(), StorageError> {
    let undone = tx.execute_unprepared("rollback to savepoint tool").await;
    undone.attempt("undo tool").map(|_| ())
}

fn task(attempt: &'static str, id: Option<String>) -> Result<Option<TaskId>, StorageError> {
    id.map(|id| TaskId::parse(&id).map_err(|error| StorageError::unreadable(attempt, error)))
        .transpose()
}

fn word<T>(attempt: &'static str, text: &str, parse: fn(&str) -> Option<T>) -> Result<T, StorageError> {
    parse(text).ok_or_else(|| StorageError::unreadable(attempt, text))
}
