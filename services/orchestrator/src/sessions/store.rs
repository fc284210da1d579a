//! Every query on sessions.

use domain::{AccountId, AgentRef, SessionId, TaskId};
use sea_orm::{FromQueryResult, Value};
use storage::{StorageError, Tx, error::Attempt, statement};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Session, SessionState};
use crate::{
    paging::{Listing, Moment, Order, Page, Rows},
    wire::{AgentName, agent_columns},
};

#[derive(FromQueryResult)]
pub struct Row {
    id: Uuid,
    kind: String,
    task: Option<String>,
    agent_id: Option<Uuid>,
    agent: Option<String>,
    generation: i32,
    key: String,
    phase: String,
    opened_at: OffsetDateTime,
    closed_at: Option<OffsetDateTime>,
    close_reason: Option<String>,
    queued: i32,
    turn_count: i64,
    active_turn_id: Option<Uuid>,
    mismatch: Option<String>,
}

impl From<Row> for Session {
    fn from(row: Row) -> Self {
        Session {
            id: row.id,
            kind: row.kind,
            task: row.task,
            agent: row.agent_id.zip(row.agent).map(|(id, slug)| AgentName { id, slug }),
            generation: row.generation,
            key: row.key,
            state: match row.closed_at {
                None => SessionState::Active,
                Some(_) => SessionState::Closed,
            },
            phase: row.phase,
            opened_at: row.opened_at.into(),
            closed_at: row.closed_at.map(Into::into),
            close_reason: row.close_reason,
            queued: row.queued,
            turns: row.turn_count,
            active_turn_id: row.active_turn_id,
            mismatch: row.mismatch,
        }
    }
}

/// A session with the names of what it belongs to. Relies on the primary key.
const FIND: &str = "
    select s.id, s.kind, coalesce(t.display_id, s.task_id) as task, s.agent_id, a.slug as agent, s.generation, s.key,
           s.phase, s.opened_at, s.closed_at, s.close_reason, s.queued, s.turn_count, s.active_turn_id, s.mismatch
    from session s
    left join task t on t.account_id = s.account_id and t.id = s.task_id
    left join agent a on a.account_id = s.account_id and a.id = s.agent_id
    where s.account_id = $1 and s.id = $2";

/// Relies on session_newest, and on agent_pkey for the agents that have or had the slug: of very many, the youngest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, kind, task_id, agent_id, generation, key, phase, opened_at, closed_at, close_reason,
            queued, turn_count, active_turn_id, mismatch
        from session where account_id = $1",
    order: &["opened_at", "id"],
    begins: Order::NewestFirst,
    wanted: Some(
        "($2::text is null or task_id = $2)
         and ($3::text is null or agent_id in (
             select a.id from (select n.id, n.slug from agent n where n.account_id = $1 order by n.id desc limit 20000) a
             where a.slug = $3))
         and ($4::uuid is null or agent_id = $4)
         and ($5::boolean is null or (closed_at is null) = $5)",
    ),
    bytes: "octet_length(mismatch)",
    names: (
        ", coalesce(t.display_id, page.task_id) as task, a.slug as agent",
        "left join task t on t.account_id = page.account_id and t.id = page.task_id
         left join agent a on a.account_id = page.account_id and a.id = page.agent_id",
    ),
};

pub async fn session_find(tx: &Tx, account: &AccountId, session: SessionId) -> Result<Option<Session>, StorageError> {
    let values = [account.as_str().into(), session.uuid().into()];
    let row = Row::find_by_statement(statement(FIND, values))
        .one(&**tx)
        .await
        .attempt("find session")?;
    Ok(row.map(Session::from))
}

/// What a list may be narrowed to.
#[derive(Debug, Default)]
pub struct Filter {
    pub task: Option<TaskId>,
    pub agent: Option<AgentRef>,
    pub active: Option<bool>,
}

/// Newest first.
pub async fn session_list(
    tx: &Tx,
    account: &AccountId,
    filter: &Filter,
    page: &Page<'_, Moment<Uuid>>,
) -> Result<Rows<Row>, StorageError> {
    let (slug, agent_id) = agent_columns(filter.agent.as_ref());
    let values: [Value; 5] = [
        account.as_str().into(),
        filter.task.as_ref().map(|task| String::from(task.key())).into(),
        slug.into(),
        agent_id.into(),
        filter.active.into(),
    ];
    let position = |row: &Row| Moment {
        at: row.opened_at,
        id: row.id,
    };
    page.read(tx, &LIST, values, position, "list sessions").await
}
