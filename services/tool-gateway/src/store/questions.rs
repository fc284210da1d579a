//! What decides whether a question may be asked or answered.

use domain::{AccountId, AgentId, SessionId, TaskId, TurnId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

/// Turns of a session that are read.
const TURNS_MAX: i64 = 200;

#[derive(FromQueryResult)]
struct Counted {
    count: i64,
}

/// Items from people that were accepted after the turn's start, and wait. Relies on notification_queue and on the turn's primary key.
pub const UNREAD: &str = "
    select count(*) as count from (
        select n.sender_kind, n.created_at from notification n
        where n.account_id = $1 and n.session_id = $2 and n.state = 'queued'
        order by n.account_id, n.session_id, n.position offset 0) n
    where n.sender_kind = 'user' and n.created_at > (select t.started_at from turn t where t.account_id = $1 and t.id = $3)";

pub(crate) async fn is_unread(
    tx: &Tx,
    account: &AccountId,
    session: SessionId,
    turn: TurnId,
) -> Result<bool, StorageError> {
    let values = [account.into(), session.into(), turn.into()];
    let counted: Option<Counted> = tx.one("look for unread messages", UNREAD, values).await?;
    Ok(counted.is_some_and(|counted| counted.count > 0))
}

/// Whether an agent works on a task: it is assigned, or had a turn on it that no question has woken, among the newest of its
/// sessions. Relies on session_generation, turn_number and primary keys.
pub const EXECUTES: &str = "
    select (select count(*) from task_assignee ta where ta.account_id = $1 and ta.task_id = $2 and ta.agent_id = $3)
         + (select count(*)
            from ((select s.account_id, s.id from session s
                   where s.account_id = $1 and s.kind = 'task' and s.task_id = $2 and s.agent_id = $3 and s.user_id is null
                   order by s.user_id desc, s.generation desc limit $4)
                  union all
                  (select s.account_id, s.id from session s
                   where s.account_id = $1 and s.kind = 'system' and s.task_id is null and s.agent_id = $3 and s.user_id is null
                   order by s.task_id desc, s.user_id desc, s.generation desc limit $4)) s
            cross join lateral (
                select t.task_id, t.cause from turn t where t.account_id = s.account_id and t.session_id = s.id
                order by t.number desc limit $4) t
            cross join lateral (
                select n.kind from notification n where n.account_id = s.account_id and n.id = t.cause offset 0) n
            where t.task_id = $2 and n.kind not in ('question', 'review')) as count";

pub(crate) async fn executes(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    agent: AgentId,
) -> Result<bool, StorageError> {
    let values = [account.into(), task.key().into(), agent.into(), TURNS_MAX.into()];
    let counted: Option<Counted> = tx.one("look for who works on a task", EXECUTES, values).await?;
    Ok(counted.is_some_and(|counted| counted.count > 0))
}
