//! Sessions: lock the active ones, open what is missing.

use std::collections::HashMap;

use domain::{AccountId, AgentId, Generation, SessionId, TaskId};
use sea_orm::{FromQueryResult, Value};
use storage::{StorageError, Tx, statement::column};

use crate::intake::resolve::{ActiveSession, Conversation};

#[derive(FromQueryResult)]
struct LockedRow {
    n: i64,
    #[sea_orm(nested)]
    session: ActiveSession,
}

/// One statement for both kinds, and in the order of account and id: everybody who locks several sessions takes them that
/// way (delivery's claims and records, the closers of sessions), so that two who meet wait and do not block each other. A
/// session that closes while we wait for its lock is not returned: then there is none. Relies on session_active_task,
/// session_active_system and the primary key; `offset 0`, and asking in a way that promises the planner nothing, keep it
/// from walking through all active sessions.
pub const SESSIONS_LOCK: &str = "
    with found as materialized (
        select w.n, t.account_id, t.id
        from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[]) as w (account_id, agent_id, n, task_id)
        cross join lateral (
            select t.account_id, t.id from session t
            where t.account_id = w.account_id and t.task_id = w.task_id and t.agent_id = w.agent_id
              and t.closed_at is null and t.kind = 'task'
            offset 0) as t
        union all
        select w.n, t.account_id, t.id
        from unnest($5::text[], $6::uuid[], $7::bigint[]) as w (account_id, agent_id, n)
        cross join lateral (
            select t.account_id, t.id from session t
            where t.account_id = w.account_id and t.agent_id = w.agent_id
              and t.closed_at is null and t.kind = 'system'
            offset 0) as t
    )
    select f.n, s.id, s.generation, s.queue_tail, s.phase = 'idle' and s.queued = 0 as rests
    from found f join session s on s.account_id = any (array[f.account_id]) and s.id = f.id
    where coalesce(s.closed_at is null, false)
    order by f.account_id, f.id for no key update of s";

/// Locks the active sessions of these conversations; those that have none are not in the answer.
pub async fn sessions_lock(
    tx: &Tx,
    conversations: &[&Conversation],
) -> Result<HashMap<usize, ActiveSession>, StorageError> {
    let (tasks, agents) = columns(conversations);
    let values = tasks.values().into_iter().chain(agents.values());
    let rows: Vec<LockedRow> = tx.rows("lock sessions", SESSIONS_LOCK, values).await?;
    Ok(rows.into_iter().map(|row| (index(row.n), row.session)).collect())
}

const SESSIONS_REOPEN: &str = "
    update session s set closed_at = null, close_reason = null
    from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[]) as w (account_id, agent_id, n, task_id)
    where s.account_id = w.account_id and s.task_id = w.task_id and s.agent_id = w.agent_id and s.kind = 'task'
      and s.closed_at is not null
      and not exists (
          select from session n where n.account_id = s.account_id and n.task_id = s.task_id and n.agent_id = s.agent_id
          and n.kind = 'task' and n.generation > s.generation)";

/// The planted bug `generation_reused`.
pub async fn sessions_reopen(tx: &Tx, conversations: &[&Conversation]) -> Result<(), StorageError> {
    let (of_tasks, _) = columns(conversations);
    let reopened = tx.execute("reopen sessions", SESSIONS_REOPEN, of_tasks.values());
    reopened.await.map(|_| ())
}

#[derive(FromQueryResult)]
struct NewestRow {
    n: i64,
    generation: Option<Generation>,
}

/// The agents are held until the end of the transaction, so that none is removed while a session is opened for it (S11).
/// Nobody is waited for: whoever removes an agent waits for its sessions, which we hold. Relies on session_generation, and
/// asks in its order, columns that are null included.
pub const SESSIONS_NEWEST_OF_TASKS: &str = "
    select w.n, (select s.generation from session s
                 where s.account_id = w.account_id and s.kind = 'task' and s.task_id = w.task_id
                   and s.agent_id = w.agent_id and s.user_id is null
                 order by s.user_id desc, s.generation desc limit 1) as generation
    from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[]) as w (account_id, agent_id, n, task_id)
    cross join lateral (
        select a.removed_at from agent a where a.account_id = w.account_id and a.id = w.agent_id
        offset 0 for share nowait) as a
    where a.removed_at is null";
pub const SESSIONS_NEWEST_OF_AGENTS: &str = "
    select w.n, (select s.generation from session s
                 where s.account_id = w.account_id and s.kind = 'system' and s.task_id is null
                   and s.agent_id = w.agent_id and s.user_id is null
                 order by s.task_id desc, s.user_id desc, s.generation desc limit 1) as generation
    from unnest($1::text[], $2::uuid[], $3::bigint[]) as w (account_id, agent_id, n)
    cross join lateral (
        select a.removed_at from agent a where a.account_id = w.account_id and a.id = w.agent_id
        offset 0 for share nowait) as a
    where a.removed_at is null";

/// The newest generation of each conversation, if it ever had one; a conversation whose agent was removed is not in the
/// answer.
pub async fn sessions_newest(
    tx: &Tx,
    conversations: &[&Conversation],
) -> Result<HashMap<usize, Option<Generation>>, StorageError> {
    let mut found = HashMap::new();
    for (columns, sql) in by_kind(conversations, SESSIONS_NEWEST_OF_TASKS, SESSIONS_NEWEST_OF_AGENTS) {
        let rows: Vec<NewestRow> = tx.rows("find newest generations", sql, columns.values()).await?;
        found.extend(rows.into_iter().map(|row| (index(row.n), row.generation)));
    }
    Ok(found)
}

/// Conversations of one kind, as arrays, with their places among all.
#[derive(Default)]
struct ConversationColumns {
    accounts: Vec<AccountId>,
    agents: Vec<AgentId>,
    places: Vec<i64>,
    /// Only of the kind that has them.
    tasks: Option<Vec<TaskId>>,
}

impl ConversationColumns {
    fn values(self) -> Vec<Value> {
        let mut values = vec![self.accounts.into(), self.agents.into(), self.places.into()];
        values.extend(self.tasks.map(Value::from));
        values
    }
}

/// Those of tasks, and those of agents alone: partial indexes need the kind spelt out.
fn columns(conversations: &[&Conversation]) -> (ConversationColumns, ConversationColumns) {
    let (mut of_tasks, mut of_agents) = (ConversationColumns::default(), ConversationColumns::default());
    let mut tasks = Vec::new();
    for (n, conversation) in (0..).zip(conversations) {
        let columns = match &conversation.task {
            Some(task) => {
                tasks.push(task.clone());
                &mut of_tasks
            }
            None => &mut of_agents,
        };
        columns.accounts.push(conversation.account.clone());
        columns.agents.push(conversation.agent);
        columns.places.push(n);
    }
    of_tasks.tasks = Some(tasks);
    (of_tasks, of_agents)
}

/// A statement for each kind that occurs.
fn by_kind(
    conversations: &[&Conversation],
    of_tasks: &'static str,
    of_agents: &'static str,
) -> Vec<(ConversationColumns, &'static str)> {
    let (tasks, agents) = columns(conversations);
    [(tasks, of_tasks), (agents, of_agents)]
        .into_iter()
        .filter(|(columns, _)| !columns.places.is_empty())
        .collect()
}

fn index(n: i64) -> usize {
    usize::try_from(n).expect("a place that we sent")
}

#[derive(Clone, Debug)]
pub struct NewSession<'a> {
    pub id: SessionId,
    pub conversation: &'a Conversation,
    pub generation: Generation,
}

/// Whoever was first wins: session_active_task, session_active_system and session_generation let nobody else in.
pub const SESSIONS_OPEN: &str = "
    insert into session (account_id, id, kind, task_id, agent_id, generation, key)
    select w.account_id, w.id, w.kind, nullif(w.task_id, ''), w.agent_id, w.generation, w.key
    from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::integer[], $7::text[])
         as w (account_id, id, kind, task_id, agent_id, generation, key)
    on conflict do nothing";

/// Opens sessions; gives how many. Fewer than asked: somebody else opened one of them.
pub async fn sessions_open(tx: &Tx, sessions: &[NewSession<'_>]) -> Result<u64, StorageError> {
    let text = |task: &Option<TaskId>| task.clone().map_or_else(String::new, String::from);
    let values = [
        column(sessions, |new| new.conversation.account.clone()),
        column(sessions, |new| new.id),
        column(sessions, |new| new.conversation.kind()),
        column(sessions, |new| text(&new.conversation.task)),
        column(sessions, |new| new.conversation.agent),
        column(sessions, |new| new.generation),
        column(sessions, |new| new.conversation.key(new.generation).to_string()),
    ];
    tx.execute("open sessions", SESSIONS_OPEN, values).await
}
