//! Moves a task to another status. A terminal status closes the task's sessions in the same transaction (S3), whether a
//! person, a service or an agent moves it. `cancelled` also ends the turns in progress; the turn of an agent that cancels
//! its own task runs to its end.

use contracts::event::{Event, TaskStatusChanged};
use domain::{AccountId, Actor, CloseReason, NotificationId, TASK_CLOSED, TaskId, TaskStatus, TurnId};
use sea_orm::FromQueryResult;
use time::OffsetDateTime;

use crate::{
    Setting, StorageError, Tx,
    activity::activity_insert,
    outbox::Owned,
    recovery::recoveries_close,
    session::{
        Closing,
        sessions_close::{ClosedSession, Cut, Scope, close},
    },
};

/// The requested move.
#[derive(Clone, Debug)]
pub struct TaskMove<'a> {
    pub account: &'a AccountId,
    pub task: &'a TaskId,
    pub to: TaskStatus,
    pub by: &'a Actor,
    /// What the caller says of it, for the activity.
    pub reason: Option<&'a str>,
    /// The turn in which an agent moved the task.
    pub turn: Option<TurnId>,
}

/// The result of a move.
#[derive(Debug)]
pub struct TaskMoved {
    pub from: TaskStatus,
    pub to: TaskStatus,
    pub closed: Vec<ClosedSession>,
    pub cancelled: Vec<NotificationId>,
    pub carried: Vec<NotificationId>,
    /// The number of turns in progress that were asked to stop.
    pub stopping: usize,
    /// For the outbox of the same transaction.
    pub messages: Vec<Owned>,
}

#[derive(FromQueryResult)]
struct TaskRow {
    status: TaskStatus,
    display_id: TaskId,
}

/// `for no key update`: the resolver's inserts, which refer to the task, do not wait for this lock.
const TASK_LOCK: &str = "select status, display_id from task where account_id = $1 and id = $2 for no key update";
/// Who moves a task on is of the time that it is blocked.
const TASK_SET: &str = "
    update task set status = $3, updated_at = $4, blocked_owner = case when $3 = 'blocked' then blocked_owner end,
        blocked_action = case when $3 = 'blocked' then blocked_action end
    where account_id = $1 and id = $2";
const TURN_START: &str = "select started_at from turn where account_id = $1 and id = $2";

#[derive(FromQueryResult)]
struct TurnRow {
    started_at: OffsetDateTime,
}

/// Moves the task. `None`: the task does not exist. Setting the current status changes nothing, but a terminal one
/// still closes the sessions that were opened since.
pub async fn task_status_set(
    tx: &Tx,
    asked: &TaskMove<'_>,
    setting: &Setting<'_>,
) -> Result<Option<TaskMoved>, StorageError> {
    let (account, key) = (asked.account, asked.task.key());
    let values = [account.into(), (&key).into()];
    let Some(row) = tx.one::<TaskRow>("lock task", TASK_LOCK, values).await? else {
        return Ok(None);
    };
    let (from, task) = (row.status, row.display_id);
    let mut moved = TaskMoved {
        from,
        to: asked.to,
        closed: Vec::new(),
        cancelled: Vec::new(),
        carried: Vec::new(),
        stopping: 0,
        messages: Vec::new(),
    };
    if from != asked.to {
        let values = [account.into(), key.into(), asked.to.into(), setting.now.into()];
        tx.execute("set task status", TASK_SET, values).await?;
        let id = activity_insert(
            tx,
            (asked.account, &task),
            "task.status_changed",
            asked.by,
            detail(from, asked),
            setting.now,
        )
        .await?;
        let changed = TaskStatusChanged {
            from,
            to: asked.to,
            by: asked.by.clone(),
        };
        moved.messages.push(setting.event(
            asked.account,
            Some(&task),
            &id.to_string(),
            Event::TaskStatusChanged(changed),
        ));
    }
    if let Some(reason) = close_reason(asked.to) {
        let closing = match asked.to {
            TaskStatus::Done => Closing::TaskDone {
                since: closing_since(tx, asked, setting.now).await?,
            },
            _ => Closing::Ended,
        };
        // A cancel cuts off; after `done` and `archived` a turn runs out.
        let cut = (asked.to == TaskStatus::Cancelled).then_some(Cut {
            by: &asked.by.name,
            spares: asked.turn,
        });
        let closed = close(tx, asked.account, Scope::Task(&task), reason, (closing, cut), setting).await?;
        moved.closed = closed.sessions;
        moved.cancelled = closed.cancelled;
        moved.carried = closed.carried;
        moved.stopping = closed.stopping;
        moved.messages.extend(closed.messages);
        let closed = recoveries_close(tx, asked.account, &task, TASK_CLOSED, setting).await?;
        moved.messages.extend(closed);
    }
    Ok(Some(moved))
}

fn detail(from: TaskStatus, asked: &TaskMove<'_>) -> serde_json::Value {
    let mut detail = serde_json::json!({"from": from, "to": asked.to});
    if let Some(reason) = asked.reason {
        detail["reason"] = reason.into();
    }
    detail
}

/// Why a task's sessions close when it moves there; `None`: they stay open. Pure.
pub fn close_reason(to: TaskStatus) -> Option<CloseReason> {
    match to {
        TaskStatus::Done => Some(CloseReason::TaskDone),
        TaskStatus::Cancelled => Some(CloseReason::TaskCancelled),
        TaskStatus::Archived => Some(CloseReason::TaskArchived),
        TaskStatus::Inbox
        | TaskStatus::Assigned
        | TaskStatus::Pending
        | TaskStatus::InProgress
        | TaskStatus::Review
        | TaskStatus::Blocked
        | TaskStatus::AwaitingApproval
        | TaskStatus::Failed => None,
    }
}

/// The time up to which the closing turn had read the thread: its start, or now if no turn closes the task.
async fn closing_since(tx: &Tx, asked: &TaskMove<'_>, now: OffsetDateTime) -> Result<OffsetDateTime, StorageError> {
    let Some(turn) = asked.turn else { return Ok(now) };
    let values = [asked.account.into(), turn.into()];
    let row: Option<TurnRow> = tx.one("read closing turn", TURN_START, values).await?;
    Ok(row.map_or(now, |row| row.started_at))
}
