//! The rows behind a batch of `turn.finished` events.

use contracts::TraceContext;
use domain::{AccountId, AgentId, TaskId, TurnId, TurnState};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, error::Attempt, statement};
use time::OffsetDateTime;
use uuid::Uuid;

/// A turn, as far as it decides about its reply.
#[derive(Debug)]
pub(super) struct EndedTurn {
    pub account: AccountId,
    pub id: TurnId,
    /// As it is shown.
    pub task: Option<TaskId>,
    pub agent: AgentId,
    pub agent_name: String,
    pub state: TurnState,
    pub reply: Option<String>,
    pub no_reply: bool,
    pub late: bool,
    pub finished_at: Option<OffsetDateTime>,
    pub hops: u16,
    pub trace: TraceContext,
}

#[derive(FromQueryResult)]
struct Row {
    account_id: String,
    id: Uuid,
    task: Option<String>,
    agent_id: Uuid,
    agent_name: String,
    state: String,
    reply: Option<String>,
    no_reply: bool,
    late: bool,
    finished_at: Option<OffsetDateTime>,
    hops: i32,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

/// Relies on the primary keys. A turn whose task is not there has none to post to.
pub const ENDED_TURNS: &str = "
    select u.account_id, u.id, t.display_id as task, u.agent_id, a.name as agent_name, u.state, u.reply, u.no_reply,
           u.late, u.finished_at, u.hops, u.traceparent, u.tracestate
    from unnest($1::text[], $2::uuid[]) as asked (account_id, id)
    join turn u on u.account_id = any (array[asked.account_id]) and u.id = asked.id
    join agent a on a.account_id = any (array[u.account_id]) and a.id = u.agent_id
    left join task t on t.account_id = any (array[u.account_id]) and t.id = u.task_id";

/// Those that there are, in no particular order.
pub(super) async fn ended_turns(tx: &Tx, places: &[(AccountId, TurnId)]) -> Result<Vec<EndedTurn>, StorageError> {
    let accounts: Vec<String> = places.iter().map(|(account, _)| account.to_string()).collect();
    let ids: Vec<Uuid> = places.iter().map(|(_, turn)| turn.uuid()).collect();
    let rows = Row::find_by_statement(statement(ENDED_TURNS, [accounts.into(), ids.into()]))
        .all(&**tx)
        .await
        .attempt("read ended turns")?;
    rows.into_iter().map(EndedTurn::try_from).collect()
}

impl TryFrom<Row> for EndedTurn {
    type Error = StorageError;

    fn try_from(row: Row) -> Result<Self, StorageError> {
        let unreadable = |what: &str| StorageError::unreadable("read ended turns", what);
        Ok(EndedTurn {
            account: AccountId::parse(&row.account_id).map_err(|_| unreadable(&row.account_id))?,
            id: TurnId(row.id),
            task: row
                .task
                .as_deref()
                .map(TaskId::parse)
                .transpose()
                .map_err(|_| unreadable("a task id"))?,
            agent: AgentId(row.agent_id),
            agent_name: row.agent_name,
            state: TurnState::parse(&row.state).ok_or_else(|| unreadable(&row.state))?,
            reply: row.reply,
            no_reply: row.no_reply,
            late: row.late,
            finished_at: row.finished_at,
            hops: u16::try_from(row.hops).unwrap_or(u16::MAX),
            trace: TraceContext {
                traceparent: row.traceparent,
                tracestate: row.tracestate,
            },
        })
    }
}
