//! Hands a task from one agent to another: the assignee is replaced, and the session, the queue, the turn in progress, the
//! questions and the timers of the first agent follow, in one transaction.

use contracts::event::{Event, TaskChanged, TaskPart};
use domain::{AccountId, Actor, AgentId, Conversation, HANDED_OVER, QuestionKind, SessionScope, TaskId, TaskStatus};
use sea_orm::FromQueryResult;
use serde_json::json;

use super::{
    close_reason,
    plan::plan_end,
    question::{self, Ending, rows_end_of},
};
use crate::{
    Setting, StorageError, Tx,
    activity::activity_insert,
    outbox::Owned,
    session::session_handover::{Handing, session_handover},
    timer::{Scope, timers_clear},
};

/// The requested handover.
#[derive(Clone, Debug)]
pub struct Handover<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    pub from: AgentId,
    pub to: AgentId,
    pub by: &'a Actor,
}

/// The result of a handover.
#[derive(Debug)]
pub struct HandedOver {
    /// Sessions that closed.
    pub closed: usize,
    /// Turns in progress that were asked to stop.
    pub stopping: usize,
    /// Items that now wait for the other agent.
    pub moved: usize,
    pub cancelled: usize,
    /// For the outbox of the same transaction.
    pub messages: Vec<Owned>,
}

/// Why a task was not handed over. Nothing was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotHandedOver {
    NoTask,
    /// It has ended.
    Ended(TaskStatus),
    /// The first agent is not assigned to it, and has no work on it.
    NotTheirs,
    /// The other agent was removed.
    NoAgent,
}

#[derive(FromQueryResult)]
struct TaskRow {
    status: TaskStatus,
    display_id: TaskId,
    session_scope: SessionScope,
}

/// Relies on the primary keys.
const TASK_LOCK: &str = "
    select t.status, t.display_id, a.session_scope from task t join account a on a.id = t.account_id
    where t.account_id = $1 and t.id = $2 for no key update of t";
const AGENT_LOCK: &str = "select true from agent where account_id = $1 and id = $2 and removed_at is null for share";
const UNASSIGN: &str = "delete from task_assignee where account_id = $1 and task_id = $2 and agent_id = $3";
const ASSIGN: &str =
    "insert into task_assignee (account_id, task_id, agent_id) values ($1, $2, $3) on conflict do nothing";
const TOUCH: &str = "update task set updated_at = $3 where account_id = $1 and id = $2";

/// Hands the task over. A caller that is refused rolls back.
pub async fn handover(
    tx: &Tx,
    asked: &Handover<'_>,
    setting: &Setting<'_>,
) -> Result<Result<HandedOver, NotHandedOver>, StorageError> {
    let (account, key) = (asked.account, asked.task.key());
    let row: Option<TaskRow> = tx.one("lock task", TASK_LOCK, [account.into(), (&key).into()]).await?;
    let Some(TaskRow {
        status,
        display_id: task,
        session_scope,
    }) = row
    else {
        return Ok(Err(NotHandedOver::NoTask));
    };
    if close_reason(status).is_some() {
        return Ok(Err(NotHandedOver::Ended(status)));
    }
    if !tx
        .exists("lock agent", AGENT_LOCK, [account.into(), asked.to.into()])
        .await?
    {
        return Ok(Err(NotHandedOver::NoAgent));
    }
    let of = |agent: AgentId| [account.into(), (&key).into(), agent.into()];
    let conversation = Conversation::of(account, session_scope, Some(&task), asked.to);
    let handing = Handing {
        account,
        task: &task,
        from: asked.from,
        to: &conversation,
        by: &asked.by.name,
    };
    let mut handed = session_handover(tx, &handing, setting).await?;
    let assigned = tx.execute("unassign agent", UNASSIGN, of(asked.from)).await? > 0;
    let works = handed.closed + handed.stopping + handed.moved + handed.cancelled > 0;
    if !assigned && !works {
        return Ok(Err(NotHandedOver::NotTheirs));
    }
    tx.execute("assign agent", ASSIGN, of(asked.to)).await?;
    tx.execute("touch task", TOUCH, [account.into(), (&key).into(), setting.now.into()])
        .await?;
    let withdrawn = Ending::Withdrawn {
        by: asked.by,
        reason: Some(HANDED_OVER),
        is_asker: true,
    };
    let asks = question::Scope::AgentOn(asked.from, &task);
    let (ended, told) = rows_end_of(tx, account, asks, &withdrawn, setting).await?;
    handed.messages.extend(told);
    for plan in ended.iter().filter(|row| row.kind == QuestionKind::Plan) {
        handed
            .messages
            .extend(plan_end(tx, account, plan, &withdrawn, setting).await?);
    }
    let timers = Scope::AgentOn(asked.from, &task);
    handed
        .messages
        .extend(timers_clear(tx, account, timers, HANDED_OVER, setting).await?);
    let detail = json!({"from": asked.from, "to": asked.to, "moved": handed.moved, "cancelled": handed.cancelled});
    let id = activity_insert(tx, (account, &task), "task.handed_over", asked.by, detail, setting.now).await?;
    let changed = TaskChanged {
        what: TaskPart::Handover,
        by: asked.by.clone(),
        detail: format!("from {} to {}", asked.from, asked.to),
    };
    let event = setting.event(account, Some(&task), &id.to_string(), Event::TaskChanged(changed));
    handed.messages.push(event);
    Ok(Ok(HandedOver {
        closed: handed.closed,
        stopping: handed.stopping,
        moved: handed.moved,
        cancelled: handed.cancelled,
        messages: handed.messages,
    }))
}
