//! Removes an agent: all of its sessions close and its queued items are cancelled, in the same transaction (S11). The
//! row stays, since sessions, turns and messages refer to it; its slug is free again.

use contracts::event::{AgentRemoved, Event};
use domain::{AccountId, Actor, AgentId, CloseReason, NotificationId, QuestionKind, TaskId};
use sea_orm::FromQueryResult;

use super::{
    plan::{plan_end, task_lock},
    question::{self, Ending, rows_end_of},
};
use crate::{
    Setting, StorageError, Tx,
    outbox::Owned,
    session::{
        Closing,
        sessions_close::{AGENT_REMOVED, ClosedSession, Scope, close},
    },
    timer::{self, timers_clear},
};

#[derive(Debug)]
pub struct AgentRemoval {
    pub closed: Vec<ClosedSession>,
    pub cancelled: Vec<NotificationId>,
    /// For the outbox of the same transaction.
    pub messages: Vec<Owned>,
}

#[derive(FromQueryResult)]
struct Removed {
    slug: String,
}

const AGENT_REMOVE: &str = "
    update agent set removed_at = $3 where account_id = $1 and id = $2 and removed_at is null returning slug";

/// In the order in which tasks are locked. Relies on question_of_agent.
pub const PLANS_OF_AGENT: &str = "
    select q.task_id from (
        select q.task_id, q.kind from question q where q.account_id = $1 and q.agent_id = $2 and q.state = 'open'
        order by q.account_id, q.agent_id offset 0) q
    where q.kind = 'plan' and q.task_id <> '' order by q.task_id";

#[derive(FromQueryResult)]
struct PlanTask {
    task_id: TaskId,
}

/// Removes the agent; `None` if it does not exist or was removed already.
pub async fn agent_remove(
    tx: &Tx,
    account: &AccountId,
    agent: AgentId,
    setting: &Setting<'_>,
) -> Result<Option<AgentRemoval>, StorageError> {
    let values = [account.into(), agent.into(), setting.now.into()];
    let Some(Removed { slug }) = tx.one("remove agent", AGENT_REMOVE, values).await? else {
        return Ok(None);
    };
    // Its plans' tasks go on as before: locked before the sessions.
    let values = [account.into(), agent.into()];
    let plans: Vec<PlanTask> = tx.rows("find plans of agent", PLANS_OF_AGENT, values).await?;
    for plan in &plans {
        task_lock(tx, account, &plan.task_id).await?;
    }
    let closed = close(
        tx,
        account,
        Scope::Agent(agent),
        CloseReason::AgentRemoved,
        (Closing::Ended, None),
        setting,
    )
    .await?;
    let mut messages = closed.messages;
    let system = Actor::system();
    let withdrawn = Ending::Withdrawn {
        by: &system,
        reason: Some(AGENT_REMOVED),
        is_asker: true,
    };
    let (questions, told) = rows_end_of(tx, account, question::Scope::Agent(agent), &withdrawn, setting).await?;
    messages.extend(told);
    for plan in questions.iter().filter(|row| row.kind == QuestionKind::Plan) {
        messages.extend(plan_end(tx, account, plan, &withdrawn, setting).await?);
    }
    let timers = timer::Scope::Agent(agent);
    messages.extend(timers_clear(tx, account, timers, AGENT_REMOVED, setting).await?);
    let event = Event::AgentRemoved(AgentRemoved { agent_id: agent, slug });
    messages.push(setting.event(account, None, &agent.to_string(), event));
    Ok(Some(AgentRemoval {
        closed: closed.sessions,
        cancelled: closed.cancelled,
        messages,
    }))
}
