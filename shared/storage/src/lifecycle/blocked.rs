//! Who moves a blocked task on, and what that person or agent has to do. An agent that is named is told at once.

use contracts::{
    event::{Event, TaskChanged, TaskPart},
    notification::NotificationMessage,
};
use domain::{AccountId, Actor, AgentId, Audience, TaskId};
use uuid::Uuid;

use crate::{Setting, StorageError, Tx, activity::activity_insert, outbox::Owned};

/// The type of the item that tells an agent.
const KIND: &str = "task_blocked";

/// Whom a task waits for.
#[derive(Clone, Copy, Debug)]
pub struct BlockedOn<'a> {
    pub owner: &'a Audience,
    pub action: &'a str,
}

/// Why nobody was named. Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotBlocked {
    /// There is no such agent.
    NoAgent,
}

/// Relies on question_of_task, timer_of_task and the primary key.
pub const BLOCK_COVERED: &str = "
    select true from (
        (select from question q where q.account_id = $1 and q.task_id = $2 and q.state = 'open' limit 1)
        union all
        (select from timer w where w.account_id = $1 and w.task_id = $2 and w.state = 'waiting' limit 1)
        union all
        (select from task_dependency d where d.account_id = $1 and d.task_id = $2 and d.satisfied_at is null limit 1)) c limit 1";

/// Whether something moves the task on by itself while it is blocked: an open question, a timer, or a task that it waits for.
pub async fn block_covered(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<bool, StorageError> {
    let values = [account.into(), task.key().into()];
    tx.exists("find what moves a blocked task", BLOCK_COVERED, values).await
}

const AGENT: &str = "select true from agent where account_id = $1 and id = $2 and removed_at is null";
const BLOCK: &str = "update task set blocked_owner = $3, blocked_action = $4 where account_id = $1 and id = $2";

/// Names who moves the task on; its status is `blocked` by now. The caller holds its lock.
pub async fn task_block(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    on: BlockedOn<'_>,
    by: &Actor,
    setting: &Setting<'_>,
) -> Result<Result<Vec<Owned>, NotBlocked>, StorageError> {
    let agent = match on.owner {
        Audience::Agent(agent) => Some(*agent),
        Audience::User(_) | Audience::Orchestrator(_) | Audience::Rule(_) | Audience::Members | Audience::Admins => {
            None
        }
    };
    if let Some(agent) = agent
        && !tx.exists("find agent", AGENT, [account.into(), agent.into()]).await?
    {
        return Ok(Err(NotBlocked::NoAgent));
    }
    let owner = on.owner.to_string();
    let values = [
        account.into(),
        task.key().into(),
        owner.as_str().into(),
        on.action.into(),
    ];
    tx.execute("block task", BLOCK, values).await?;
    let detail = serde_json::json!({"owner": owner, "action": on.action});
    let id = activity_insert(tx, (account, task), "task.blocked_on", by, detail, setting.now).await?;
    let changed = TaskChanged {
        what: TaskPart::BlockedOn,
        by: by.clone(),
        detail: format!("{owner} has to: {}", on.action),
    };
    let mut messages = vec![setting.event(account, Some(task), &id.to_string(), Event::TaskChanged(changed))];
    messages.extend(agent.map(|agent| agent_told((account, task), agent, on.action, by, (id, setting))));
    Ok(Ok(messages))
}

/// The notification that tells an agent. Its id follows from the activity.
fn agent_told(
    (account, task): (&AccountId, &TaskId),
    agent: AgentId,
    action: &str,
    by: &Actor,
    (activity, setting): (Uuid, &Setting<'_>),
) -> Owned {
    let title = format!("{task} is blocked until you act");
    let message = NotificationMessage::new(KIND, by.clone(), title, action.to_owned()).with("reopen", false);
    setting.agent_told((account, Some(task)), (agent, &activity.into()), message)
}
