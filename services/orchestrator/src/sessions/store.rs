//! Every query on sessions.

use domain::{AccountId, AgentRef, SessionId, TaskId};
use sea_orm::{FromQueryResult, Value};
use storage::{StorageError, Tx, error::Attempt, statement};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Session, SessionState};
use crate::{
    paging::{Moment, Page, Rows},
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

/// A session with the names of what it belongs to.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select s.id, s.kind, coalesce(t.display_id, s.task_id) as task, s.agent_id, a.slug as agent, s.generation,
                    s.key, s.phase, s.opened_at, s.closed_at, s.close_reason, s.queued, s.turn_count, s.active_turn_id,
                    s.mismatch
             from session s
             left join task t on t.account_id = s.account_id and t.id = s.task_id
             left join agent a on a.account_id = s.account_id and a.id = s.agent_id
             where s.account_id = $1 ",
            $rest
        )
    };
}

/// Relies on the primary key.
const FIND: &str = select!("and s.id = $2");

/// Relies on session_newest.
const LIST: &str = select!(
    "and ($2::text is null or s.task_id = $2)
     and ($3::text is null or a.slug = $3) and ($4::uuid is null or s.agent_id = $4)
     and ($5::boolean is null or (s.closed_at is null) = $5)
     and ($6::timestamptz is null or (s.opened_at, s.id) < ($6, $7::uuid))
     order by s.opened_at desc, s.id desc limit $8"
);

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
    let [after_at, after_id, rows] = page.values();
    let values: [Value; 8] = [
        account.as_str().into(),
        filter.task.as_ref().map(|task| String::from(task.key())).into(),
        slug.into(),
        agent_id.into(),
        filter.active.into(),
        after_at,
        after_id,
        rows,
    ];
    let rows = Row::find_by_statement(statement(LIST, values))
        .all(&**tx)
        .await
        .attempt("list sessions")?;
    Ok(page.cut(rows, |row| Moment {
        at: row.opened_at,
        id: row.id,
    }))
}
