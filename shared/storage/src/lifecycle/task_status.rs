//! Moves a task to another status. A terminal status closes the task's sessions in the same transaction (S3), whether a
//! person, a service or an agent moves it. `cancelled` also ends the turns in progress; the turn of an agent that cancels
//! its own task runs to its end.

use contracts::event::{Event, TaskStatusChanged};
use domain::{
    AccountId, Actor, CloseReason, NotificationId, Owner, QuestionId, TASK_CLOSED, TaskId, TaskStatus, TurnId,
};
use sea_orm::FromQueryResult;
use time::OffsetDateTime;

use super::{
    child_mail::{ChildMove, child_mail},
    dependencies::{blockers_open, dependents_follow},
    mail_send::mail_back,
    plan::plan_find,
    question::{self, Ending, questions_end_of},
    recovery::recoveries_close,
    stage::{Caught, stage_open, stages_again},
};
use crate::{
    Setting, StorageError, Tx,
    activity::activity_insert,
    outbox::Owned,
    session::{
        Closing,
        sessions_close::{ClosedSession, Cut, Scope, close},
    },
    timer::{self, timers_clear},
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
    /// An admin: to `done` whatever stages are not passed.
    pub passes_stages: bool,
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
    /// A review stage asks before the task is done: the task is in review instead.
    pub caught: Option<Caught>,
    /// Tasks that waited for this one, and wait for nothing any more.
    pub freed: Vec<TaskId>,
    /// For the outbox of the same transaction.
    pub messages: Vec<Owned>,
}

#[derive(Debug, FromQueryResult)]
pub(super) struct TaskRow {
    pub id: TaskId,
    pub board: Option<Owner>,
    pub status: TaskStatus,
    pub display_id: TaskId,
    /// Its review stages, counted.
    pub stages: i32,
}

/// Why a task was not moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TaskNotMoved {
    NotThere,
    /// Its plan awaits approval: the answer moves it, or the end of the task.
    AwaitsAnswer(QuestionId),
    /// It waits for these tasks.
    BlockedBy(Vec<TaskId>),
}

/// `for no key update`: the resolver's inserts, which refer to the task, do not wait for this lock.
/// With the task those that wait for it, and others, in one order. Relies on the primary key and on task_dependency_blocker, whose
/// order is requested with the blocker as a range.
pub const TASKS_LOCK: &str = "
    select t.id, t.board, t.status, t.display_id, t.stages from (
        select $1::text as account_id, $2::text as id
        union select $1, f.id from unnest($3::text[]) as f (id)
        union (select d.account_id, d.task_id from task_dependency d
               where d.account_id = $1 and d.blocked_by_task_id >= $2 and d.blocked_by_task_id <= $2 and d.satisfied_at is null
               order by d.blocked_by_task_id offset 0)) f
    join task t on t.account_id = any (array[f.account_id]) and t.id = f.id
    order by t.id for no key update of t";
/// A task that has ended begins without a plan when it is opened again. Who moves a task on is of the time that it is blocked.
const TASK_SET: &str = "
    update task set status = $3, updated_at = $4, plan_approved = plan_approved and status not in ('done', 'cancelled', 'archived'),
        plan_submitted = plan_submitted and status not in ('done', 'cancelled', 'archived'),
        blocked_owner = case when $3 = 'blocked' then blocked_owner end,
        blocked_action = case when $3 = 'blocked' then blocked_action end
    where account_id = $1 and id = $2
    returning board, title, exists (
        select from task_dependency d where d.account_id = $1 and d.blocked_by_task_id = $2 and d.satisfied_at is null) as is_waited_for";

#[derive(FromQueryResult)]
struct MovedRow {
    board: Option<Owner>,
    title: String,
    /// Read after the lock: whoever has begun to wait before is seen.
    is_waited_for: bool,
}

const TURN_START: &str = "select started_at from turn where account_id = $1 and id = $2";

#[derive(FromQueryResult)]
struct TurnRow {
    started_at: OffsetDateTime,
}

/// Locks the task against others that move it, with those that wait for it, and the others that are named.
pub(super) async fn tasks_lock(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    others: &[TaskId],
) -> Result<Vec<TaskRow>, StorageError> {
    let others: Vec<TaskId> = others.iter().map(TaskId::key).collect();
    let values = [account.into(), task.key().into(), others.into()];
    tx.rows("lock task", TASKS_LOCK, values).await
}

/// The same for the task alone, with those that wait for it.
pub(super) async fn task_lock_row(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
) -> Result<Option<TaskRow>, StorageError> {
    let rows = tasks_lock(tx, account, task, &[]).await?;
    Ok(rows.into_iter().find(|row| row.id == task.key()))
}

/// What a move has written.
#[derive(Debug, Default)]
pub struct Written {
    pub messages: Vec<Owned>,
    /// Tasks that wait for nothing any more.
    pub freed: Vec<TaskId>,
}

/// The kind of an activity.
pub(super) const STATUS_CHANGED: &str = "task.status_changed";

/// Writes a task's status as [`status_freeing`] does.
pub(super) async fn status_write(
    tx: &Tx,
    named: (&AccountId, &TaskId),
    to: (TaskStatus, TaskStatus),
    said: (&Actor, Option<&str>),
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    status_freeing(tx, named, to, said, setting)
        .await
        .map(|written| written.messages)
}

/// Writes a task's status, with its activity and event, if it is another one, and what follows for those that wait for it; whose board it
/// is on hears of it. The caller holds the task's lock.
async fn status_freeing(
    tx: &Tx,
    (account, task): (&AccountId, &TaskId),
    (from, to): (TaskStatus, TaskStatus),
    (by, reason): (&Actor, Option<&str>),
    setting: &Setting<'_>,
) -> Result<Written, StorageError> {
    let mut written = Written::default();
    if from == to {
        return Ok(written);
    }
    let values = [account.into(), task.key().into(), to.into(), setting.now.into()];
    let row: Option<MovedRow> = tx.one("set task status", TASK_SET, values).await?;
    if from.is_terminal() && !to.is_terminal() {
        stages_again(tx, account, task).await?;
    }
    let mut detail = serde_json::json!({"from": from, "to": to});
    if let Some(reason) = reason {
        detail["reason"] = reason.into();
    }
    let id = activity_insert(tx, (account, task), STATUS_CHANGED, by, detail, setting.now).await?;
    let changed = TaskStatusChanged {
        from,
        to,
        by: by.clone(),
    };
    let event = setting.event(account, Some(task), &id.to_string(), Event::TaskStatusChanged(changed));
    written.messages.push(event);
    let is_waited_for = row.as_ref().is_some_and(|row| row.is_waited_for);
    if let Some((board, title)) = row.and_then(|row| Some((row.board?, row.title))) {
        let moved = ChildMove {
            board: &board,
            task,
            title: &title,
            to,
            by,
            reason,
            activity: id,
        };
        written.messages.extend(child_mail(tx, account, moved, setting).await?);
    }
    if is_waited_for {
        let follows = dependents_follow(tx, (account, task), to, by, setting).await?;
        written.messages.extend(follows.messages);
        written.freed = follows.freed;
    }
    Ok(written)
}

/// Moves the task. Setting the current status changes nothing, but a terminal one still closes the sessions that were opened
/// since.
pub async fn task_status_set(
    tx: &Tx,
    asked: &TaskMove<'_>,
    setting: &Setting<'_>,
) -> Result<Result<TaskMoved, TaskNotMoved>, StorageError> {
    let account = asked.account;
    let Some(row) = task_lock_row(tx, account, asked.task).await? else {
        return Ok(Err(TaskNotMoved::NotThere));
    };
    let (from, task) = (row.status, row.display_id);
    if from == TaskStatus::AwaitingApproval
        && from != asked.to
        && !asked.to.is_terminal()
        && let Some(plan) = plan_find(tx, account, &task).await?
    {
        return Ok(Err(TaskNotMoved::AwaitsAnswer(plan)));
    }
    if from != asked.to && !asked.to.is_free_of_blockers() {
        let blockers = blockers_open(tx, account, &task).await?;
        if !blockers.is_empty() {
            return Ok(Err(TaskNotMoved::BlockedBy(blockers)));
        }
    }
    let mut moved = TaskMoved {
        from,
        to: asked.to,
        closed: Vec::new(),
        cancelled: Vec::new(),
        carried: Vec::new(),
        stopping: 0,
        caught: None,
        freed: Vec::new(),
        messages: Vec::new(),
    };
    if asked.to == TaskStatus::Done
        && from != asked.to
        && row.stages > 0
        && !asked.passes_stages
        && let Some((caught, messages)) = stage_open(tx, (account, &task), asked.by, setting).await?
    {
        moved.to = TaskStatus::Review;
        moved.caught = Some(caught);
        moved.messages = messages;
        let written = status_write(
            tx,
            (account, &task),
            (from, moved.to),
            (asked.by, asked.reason),
            setting,
        )
        .await?;
        moved.messages.extend(written);
        return Ok(Ok(moved));
    }
    let said = (asked.by, asked.reason);
    let written = status_freeing(tx, (account, &task), (from, asked.to), said, setting).await?;
    moved.messages.extend(written.messages);
    moved.freed = written.freed;
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
        let ending = Ending::Cancelled { reason: TASK_CLOSED };
        let asked = question::Scope::Task(&task);
        moved
            .messages
            .extend(questions_end_of(tx, account, asked, &ending, setting).await?);
        mail_back(tx, account, &task).await?;
        let timers = timer::Scope::Task(&task);
        moved
            .messages
            .extend(timers_clear(tx, account, timers, TASK_CLOSED, setting).await?);
    }
    Ok(Ok(moved))
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
