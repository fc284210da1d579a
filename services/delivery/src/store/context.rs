//! Reads the inputs of a new turn's prompt: the next item of the queue, the agent, the task, a few messages of its
//! thread. Thread reads always go by account and task (S9).

use domain::{
    AccountId, ActorKind, AgentId, AgentSlug, InstructionLayout, MessageId, QueueMode, SessionId, TaskId, TaskStatus,
};
use sea_orm::{FromQueryResult, TryGetableFromJson};
use serde::Deserialize;
use storage::{
    StorageError, Tx,
    breaker::Seen,
    statement::{column, pairs},
};

use super::{SessionName, runs::Behind, threads::Threads};
use crate::prompt::{InputFacts, OverviewEntry, THREAD_COUNTED_MAX, ThreadExtract, ThreadMessage};

/// The next item of a session's queue, with the facts for its prompt.
#[derive(Clone, Debug, FromQueryResult)]
pub struct QueuedItem {
    #[sea_orm(from_alias = "account_id")]
    pub account: AccountId,
    pub session_id: SessionId,
    #[sea_orm(nested)]
    pub facts: InputFacts,
    pub position: i64,
    pub queue_mode: QueueMode,
    /// With mode `collect`: it met a busy session.
    pub joins: bool,
    pub waited_ms: i64,
    pub debounce_ms: Option<serde_json::Value>,
    pub attempts: i32,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub agent_id: AgentId,
    pub agent_slug: AgentSlug,
    pub agent_name: String,
    pub agent_role: String,
    pub provider: String,
    #[sea_orm(from_alias = "instruction_layout")]
    pub layout: InstructionLayout,
    /// The task is the account's coordinator task, and the agent its coordinator (S6).
    pub is_coordinator: bool,
    pub briefing: String,
    /// The account's active holds, counted.
    pub holds: i32,
    /// The breaker of its provider; none: no call of it has failed.
    pub breaker: Option<Seen>,
    /// The account's tool policies, counted.
    pub tool_policies: i32,
}

impl QueuedItem {
    pub fn name(&self) -> SessionName {
        (self.account.clone(), self.session_id)
    }

    /// Its task, if the task may await the approval of its plan and the item does not start before that.
    pub fn awaits_approval(&self) -> Option<&TaskId> {
        let facts = &self.facts;
        let task = facts
            .task
            .as_ref()
            .filter(|task| task.status == TaskStatus::AwaitingApproval)?;
        let passes = facts.sender.kind == ActorKind::User || facts.answer_to.is_some();
        (!passes).then_some(&task.id)
    }

    /// Adds the further items of its run.
    pub fn join(&mut self, further: impl IntoIterator<Item = Behind>) {
        for item in further {
            self.hops = self.hops.max(item.hops);
            self.facts.further.push(item.further());
        }
    }
}

/// An item with its thread: the ids of the newest messages, newest first, and those messages that are not cached.
#[derive(FromQueryResult)]
struct QueuedRow {
    #[sea_orm(nested)]
    item: QueuedItem,
    thread_ids: Option<Vec<MessageId>>,
    thread_read: Option<ThreadRead>,
}

#[derive(Deserialize)]
struct ThreadRead(Vec<ThreadMessage>);

impl TryGetableFromJson for ThreadRead {}

/// Relies on index notification_queue, on primary keys, for answers on question_notification, and on index message_thread, whose order is requested twice:
/// for a table that was analysed while it was empty, another index costs the same. Bodies of messages that are `known`
/// are not read; the prompt cuts bodies far below this limit. The caller holds the session's lock, so no other transaction takes the item.
pub const QUEUE_NEXT: &str = concat!(
    "
    select n.account_id, n.session_id, n.id, n.kind, n.sender_kind, n.sender_id, n.sender_name, n.sender_via,
           n.title, n.body, n.message_id, n.position, n.queue_mode, n.joins,
           case when n.kind = 'answer' then (
               select q.id from question q where q.account_id = n.account_id and q.notification_id = n.id
               order by q.account_id, q.notification_id offset 0) end as answer_to,
           (extract(epoch from now() - n.created_at) * 1000)::bigint as waited_ms,
           case when n.joins then n.metadata -> 'collect_debounce_ms' end as debounce_ms, n.attempts, n.hops, n.traceparent, n.tracestate, g.id as agent_id, g.slug as agent_slug, g.name as agent_name,
           g.role as agent_role, g.provider, a.instruction_layout,
           k.display_id as task_id, k.title as task_title, k.description as task_description, k.status as task_status,
           case when k.id = a.coordinator_task then ",
    storage::coordinates!("a", "g.id"),
    " else false end as is_coordinator,
           case when k.id = a.coordinator_task then a.briefing else '' end as briefing, a.holds, a.tool_policies, ",
    storage::breaker_of!("$7", "g.provider"),
    " as breaker,
           thread.ids as thread_ids, thread.read as thread_read, thread.total as thread_total
    from unnest($1::text[], $2::uuid[], $3::text[], $6::bigint[]) as w (account_id, id, known, position)
    cross join lateral (
        select * from notification n
        where n.account_id = w.account_id and n.session_id = w.id and n.state = 'queued' and n.position >= w.position
        order by n.position limit 1) n
    join account a on a.id = any (array[n.account_id])
    join agent g on g.account_id = any (array[n.account_id]) and g.id = n.agent_id
    left join task k on k.account_id = any (array[n.account_id]) and k.id = n.task_id
    cross join lateral (
        select (select count(*) from (
                    select from message c where c.account_id = k.account_id and c.task_id = k.id
                    order by c.created_at, c.id limit $5) c) as total, m.ids, m.read
        from (            select array_agg(m.id) as ids,
                   json_agg(json_build_object('id', m.id, 'author', json_build_object('kind', m.author_kind, 'id', m.author_id,
                                              'name', m.author_name, 'via', m.author_via), 'body', left(m.body, 4000),
                                              'at', m.created_at)) filter (where m.id <> all (w.known::uuid[])) as read
            from (select * from message m where m.account_id = k.account_id and m.task_id = k.id
                  order by m.created_at desc, m.id desc limit $4) m) m
        offset 0) thread"
);

/// `places`: sessions, and the first position that is read. `keys_json`: the keys of breakers by the names of providers.
pub async fn queue_next(
    tx: &Tx,
    places: &[(SessionName, i64)],
    threads: &Threads,
    messages_max: i64,
    keys_json: &str,
) -> Result<Vec<QueuedItem>, StorageError> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<SessionName> = places.iter().map(|(name, _)| name.clone()).collect();
    let known = threads.known(&names);
    let (accounts, ids) = pairs(&names);
    let known_ids: Vec<String> = names.iter().map(|name| uuid_array(known.get(name))).collect();
    let values = [
        accounts.into(),
        ids.into(),
        known_ids.into(),
        messages_max.into(),
        (THREAD_COUNTED_MAX + 1).into(),
        column(places, |(_, position)| *position),
        keys_json.into(),
    ];
    let rows: Vec<QueuedRow> = tx.rows("take from queues", QUEUE_NEXT, values).await?;
    let complete = |row: QueuedRow| {
        let mut item = row.item;
        let name = item.name();
        let read = row.thread_read.map_or_else(Vec::new, |read| read.0);
        let ids = row.thread_ids.unwrap_or_default();
        item.facts.thread = Threads::extract(ids.into_iter().rev(), known.get(&name), read);
        item
    };
    Ok(rows.into_iter().map(complete).collect())
}

/// The messages' ids as a text that Postgres reads as an array.
fn uuid_array(extract: Option<&ThreadExtract>) -> String {
    let ids: Vec<String> = extract
        .into_iter()
        .flat_map(|extract| extract.iter())
        .map(|message| message.id.to_string())
        .collect();
    format!("{{{}}}", ids.join(","))
}

/// Relies on index task_newest.
pub const OVERVIEW_LOAD: &str =
    "select display_id, title, status from task where account_id = $1 order by created_at desc, id desc limit $2";

/// The account's newest tasks, for its coordinator alone.
pub async fn overview_load(tx: &Tx, account: &AccountId, tasks_max: i64) -> Result<Vec<OverviewEntry>, StorageError> {
    let values = [account.into(), tasks_max.into()];
    tx.rows("load task overview", OVERVIEW_LOAD, values).await
}
