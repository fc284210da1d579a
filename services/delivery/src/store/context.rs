//! What the prompt of a new turn is made of: the next item of the queue, the agent, the task, a few messages of its
//! thread. Thread reads go by account and task, always (S9).

use domain::{
    AccountId, Actor, ActorKind, AgentId, AgentSlug, InstructionLayout, MessageId, NotificationId, SessionId, TaskId,
    TaskStatus,
    planted::{Bug, is_planted},
};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::Deserialize;
use storage::{StorageError, Tx, error::Attempt, statement};
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use super::{SessionName, columns};
use crate::prompt::{OverviewEntry, THREAD_COUNTED_MAX, TaskFacts, ThreadMessage};

/// The next item of a session's queue, with what the prompt says of its surroundings.
#[derive(Clone, Debug)]
pub struct Item {
    pub account: AccountId,
    pub session_id: SessionId,
    pub notification: NotificationId,
    pub kind: String,
    pub sender: Actor,
    pub title: Option<String>,
    pub body: String,
    pub about_message: Option<MessageId>,
    pub attempts: i32,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub agent_id: AgentId,
    pub agent_slug: AgentSlug,
    pub agent_name: String,
    pub agent_role: String,
    pub provider: String,
    pub layout: InstructionLayout,
    pub task: Option<TaskFacts>,
    /// Of the task's thread, if there is a task.
    pub thread: Extract,
    /// The task is the account's coordinator task, and the agent its coordinator (S6).
    pub is_coordinator: bool,
    pub briefing: String,
}

#[derive(FromQueryResult)]
struct ItemRow {
    account_id: String,
    session_id: Uuid,
    id: String,
    kind: String,
    sender_kind: String,
    sender_id: String,
    sender_name: String,
    sender_via: Option<String>,
    title: Option<String>,
    body: String,
    message_id: Option<Uuid>,
    attempts: i32,
    hops: i32,
    traceparent: Option<String>,
    tracestate: Option<String>,
    agent_id: Uuid,
    slug: String,
    agent_name: String,
    role: String,
    provider: String,
    instruction_layout: String,
    display_id: Option<String>,
    task_title: Option<String>,
    description: Option<String>,
    status: Option<String>,
    is_coordinator: bool,
    briefing: Option<String>,
    thread: Option<MessageRows>,
    thread_total: i64,
}

/// Relies on index notification_queue, on primary keys, and on index message_thread, whose order is asked for twice: where
/// the table was counted when it was empty, another index costs the same. Bodies of messages are cut by the prompt anyway,
/// and far below this. The session is locked by the caller, so nobody else takes
/// the item.
macro_rules! queue_next {
    ($order:literal) => {
        concat!(
            "
    select n.account_id, n.session_id, n.id, n.kind, n.sender_kind, n.sender_id, n.sender_name, n.sender_via,
           n.title, n.body, n.message_id,
           n.attempts, n.hops, n.traceparent, n.tracestate, g.id as agent_id, g.slug, g.name as agent_name, g.role, g.provider,
           a.instruction_layout, k.display_id, k.title as task_title, k.description, k.status,
           case when k.id = a.coordinator_task then ",
    storage::coordinates!("a", "g.id"),
    " else false end as is_coordinator,
           case when k.id = a.coordinator_task then a.briefing end as briefing,
           thread.messages as thread, thread.total as thread_total
    from unnest($1::text[], $2::uuid[]) as w (account_id, id)
    cross join lateral (
        select * from notification n
        where n.account_id = w.account_id and n.session_id = w.id and n.state = 'queued'
        order by n.position ",
            $order,
            " limit 1) n
    join account a on a.id = any (array[n.account_id])
    join agent g on g.account_id = any (array[n.account_id]) and g.id = n.agent_id
    left join task k on k.account_id = any (array[n.account_id]) and k.id = n.task_id
    cross join lateral (
        select (select count(*) from (
                    select from message c where c.account_id = k.account_id and c.task_id = k.id
                    order by c.created_at, c.id limit $4) c) as total,
               (select json_agg(json_build_object('id', m.id, 'author_kind', m.author_kind, 'author_id', m.author_id,
                                                  'author_name', m.author_name, 'author_via', m.author_via, 'body', left(m.body, 4000),
                                                  'created_at', m.created_at) order by m.created_at, m.id)
                from (select * from message m where m.account_id = k.account_id and m.task_id = k.id
                      order by m.created_at desc, m.id desc limit $3) m) as messages
        offset 0) thread"
        )
    };
}
pub const QUEUE_NEXT: &str = queue_next!("asc");
const QUEUE_NEXT_PLANTED: &str = queue_next!("desc");

pub async fn queue_next(tx: &Tx, names: &[SessionName], messages_max: i64) -> Result<Vec<Item>, StorageError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let (accounts, ids) = columns(names);
    let values = [
        accounts.into(),
        ids.into(),
        messages_max.into(),
        (THREAD_COUNTED_MAX + 1).into(),
    ];
    let next = if is_planted(Bug::NewestFirst) {
        QUEUE_NEXT_PLANTED
    } else {
        QUEUE_NEXT
    };
    let rows = ItemRow::find_by_statement(statement(next, values))
        .all(&**tx)
        .await
        .attempt("take from queues")?;
    rows.into_iter()
        .map(|row| item(row).map_err(|what| StorageError::unreadable("take from queues", what)))
        .collect()
}

fn item(row: ItemRow) -> Result<Item, String> {
    let account = AccountId::parse(&row.account_id).map_err(|error| error.to_string())?;
    let task = row
        .display_id
        .map(|id| {
            Ok::<_, String>(TaskFacts {
                id: TaskId::parse(&id).map_err(|error| error.to_string())?,
                title: row.task_title.unwrap_or_default(),
                description: row.description.unwrap_or_default(),
                status: row.status.as_deref().and_then(TaskStatus::parse).ok_or("task status")?,
            })
        })
        .transpose()?;
    Ok(Item {
        account,
        session_id: SessionId(row.session_id),
        notification: NotificationId::parse(&row.id).map_err(|error| error.to_string())?,
        kind: row.kind,
        sender: actor(&row.sender_kind, row.sender_id, row.sender_name, row.sender_via)?,
        title: row.title,
        body: row.body,
        about_message: row.message_id.map(MessageId),
        attempts: row.attempts,
        hops: row.hops,
        traceparent: row.traceparent,
        tracestate: row.tracestate,
        agent_id: AgentId(row.agent_id),
        agent_slug: AgentSlug::parse(&row.slug).map_err(|error| error.to_string())?,
        agent_name: row.agent_name,
        agent_role: row.role,
        provider: row.provider,
        layout: InstructionLayout::parse(&row.instruction_layout).ok_or("instruction layout")?,
        task,
        is_coordinator: row.is_coordinator,
        briefing: row.briefing.unwrap_or_default(),
        thread: extract(row.thread, row.thread_total)?,
    })
}

fn actor(kind: &str, id: String, name: String, via: Option<String>) -> Result<Actor, String> {
    Ok(Actor {
        kind: ActorKind::parse(kind).ok_or("actor kind")?,
        id,
        name,
        via,
    })
}

/// The newest few messages of a task's thread, oldest first, and how many there are, counted up to a limit.
#[derive(Clone, Debug, Default)]
pub struct Extract {
    pub messages: Vec<ThreadMessage>,
    pub total: i64,
}

/// A message, as the statement puts it into an array.
#[derive(Deserialize)]
struct MessageRow {
    id: Uuid,
    author_kind: String,
    author_id: String,
    author_name: String,
    author_via: Option<String>,
    body: String,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

#[derive(Default, Deserialize)]
struct MessageRows(Vec<MessageRow>);

impl TryGetableFromJson for MessageRows {}

fn extract(rows: Option<MessageRows>, total: i64) -> Result<Extract, String> {
    let rows = rows.unwrap_or_default().0;
    let messages: Result<Vec<ThreadMessage>, String> = rows
        .into_iter()
        .map(|row| {
            Ok(ThreadMessage {
                id: MessageId(row.id),
                author: actor(&row.author_kind, row.author_id, row.author_name, row.author_via)?,
                body: row.body,
                at: row.created_at.to_offset(UtcOffset::UTC),
            })
        })
        .collect();
    Ok(Extract {
        messages: messages?,
        total,
    })
}

#[derive(FromQueryResult)]
struct OverviewRow {
    display_id: String,
    title: String,
    status: String,
}

/// Relies on index task_newest.
pub const OVERVIEW_LOAD: &str =
    "select display_id, title, status from task where account_id = $1 order by created_at desc, id desc limit $2";

/// The account's newest tasks, for its coordinator alone.
pub async fn overview_load(tx: &Tx, account: &AccountId, tasks_max: i64) -> Result<Vec<OverviewEntry>, StorageError> {
    const ATTEMPT: &str = "load task overview";
    let values = [account.as_str().into(), tasks_max.into()];
    let rows = OverviewRow::find_by_statement(statement(OVERVIEW_LOAD, values))
        .all(&**tx)
        .await
        .attempt(ATTEMPT)?;
    rows.into_iter()
        .map(|row| {
            Ok(OverviewEntry {
                id: TaskId::parse(&row.display_id).map_err(|error| StorageError::unreadable(ATTEMPT, error))?,
                title: row.title,
                status: TaskStatus::parse(&row.status).ok_or_else(|| StorageError::unreadable(ATTEMPT, &row.status))?,
            })
        })
        .collect()
}
