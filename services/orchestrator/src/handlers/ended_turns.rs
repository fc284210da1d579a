//! Reads the turns of a batch of `turn.finished` events.

use domain::{AccountId, AgentId, TaskId, TurnId, TurnState};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;

/// The columns of a turn that decide about its reply.
#[derive(Debug, FromQueryResult)]
pub(super) struct EndedTurn {
    pub account: AccountId,
    pub id: TurnId,
    /// The task's display id.
    pub task: Option<TaskId>,
    pub agent: AgentId,
    pub agent_name: String,
    pub state: TurnState,
    pub reply: Option<String>,
    pub no_reply: bool,
    pub late: bool,
    pub finished_at: Option<OffsetDateTime>,
    pub hops: i32,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
}

/// A branch's reply goes to its parent, a replay's to nobody. Relies on the primary keys. A turn without a task row has no thread.
pub const ENDED_TURNS: &str = "
    select u.account_id as account, u.id, t.display_id as task, u.agent_id as agent, a.name as agent_name, u.state, u.reply,
           u.no_reply, u.late, u.finished_at, u.hops, u.traceparent, u.tracestate
    from unnest($1::text[], $2::uuid[]) as asked (account_id, id)
    join turn u on u.account_id = any (array[asked.account_id]) and u.id = asked.id
    join agent a on a.account_id = any (array[u.account_id]) and a.id = u.agent_id
    left join task t on t.account_id = any (array[u.account_id]) and t.id = u.task_id
    join session s on s.account_id = any (array[u.account_id]) and s.id = u.session_id
    where s.kind not in ('branch', 'replay')";

/// The turns that exist, in no particular order.
pub(super) async fn ended_turns(tx: &Tx, places: &[(AccountId, TurnId)]) -> Result<Vec<EndedTurn>, StorageError> {
    let (accounts, ids): (Vec<AccountId>, Vec<TurnId>) = places.iter().cloned().unzip();
    tx.rows("read ended turns", ENDED_TURNS, [accounts.into(), ids.into()])
        .await
}
