//! Reads what a plan that awaits approval keeps from starting, and what may start nevertheless.

use domain::{AccountId, QuestionId, SessionId, TaskId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, statement::column};

use super::SessionName;

/// A session whose next item is on a task with an open plan.
#[derive(Debug, FromQueryResult)]
pub struct AwaitedPlan {
    account_id: AccountId,
    session_id: SessionId,
    pub plan: QuestionId,
    /// The first item that may start: an answer, results of branches, one from a person, one that asks its agent an open question, one on another task.
    pub position: Option<i64>,
}

impl AwaitedPlan {
    pub fn name(&self) -> SessionName {
        (self.account_id.clone(), self.session_id)
    }
}

/// The callers hold the sessions' locks. The kind is compared in a form that question_decision does not serve: one index for tables
/// of any size. Relies on question_of_task, question_notification, branch_item, notification_queue and primary keys.
pub const PLANS_AWAITED: &str = "
    select w.account_id, w.id as session_id, p.id as plan, f.position
    from unnest($1::text[], $2::uuid[], $3::text[]) as w (account_id, id, task_id)
    cross join lateral (
        select q.id from question q
        where q.account_id = w.account_id and q.task_id = w.task_id and q.state = 'open' and coalesce(q.kind = 'plan', false)
        order by q.account_id, q.task_id offset 0) p
    cross join lateral (
        select min(n.position) as position from (
            select n.* from notification n
            where n.account_id = w.account_id and n.session_id = w.id and n.state = 'queued'
            order by n.account_id, n.session_id, n.position offset 0) n
        where n.sender_kind = 'user'
           or n.kind = 'answer' and (
                select count(*) from question a where a.account_id = n.account_id and a.notification_id = n.id) > 0
           or n.kind = 'branch_result' and (
                select count(*) from branch b where b.account_id = n.account_id and b.joined_item = n.id) > 0
           or n.kind in ('question', 'review') and (
                select count(*) from (
                    select a.audience from question a
                    where a.account_id = n.account_id and a.task_id = n.task_id and a.state = 'open'
                    order by a.account_id, a.task_id offset 0) a
                where 'agent:' || n.agent_id = any (a.audience)) > 0
           or (n.task_id is distinct from w.task_id and (
                select count(*) from (
                    select from question o
                    where o.account_id = n.account_id and o.task_id = n.task_id and o.state = 'open' and coalesce(o.kind = 'plan', false)
                    order by o.account_id, o.task_id offset 0) o) = 0)) f";

/// The open plans of these tasks; a session whose task has none is missing.
pub async fn plans_awaited(tx: &Tx, heads: &[(SessionName, TaskId)]) -> Result<Vec<AwaitedPlan>, StorageError> {
    if heads.is_empty() {
        return Ok(Vec::new());
    }
    let values = [
        column(heads, |((account, _), _)| account.clone()),
        column(heads, |((_, session), _)| *session),
        column(heads, |(_, task)| task.key()),
    ];
    tx.rows("look for open plans", PLANS_AWAITED, values).await
}
