//! Plans: a task whose agent has submitted one waits in `awaiting_approval` until its question ends. One plan of a task is open
//! at a time.

use domain::{AccountId, Actor, Audience, Gate, QuestionId, QuestionState, TaskId, TaskStatus, Verdict};
use sea_orm::FromQueryResult;

use super::{
    dependencies::{blockers_open, unless_blocked},
    question::{About, Asker, Choices, Ending, NewQuestion, QuestionRow, question_end, question_open},
    task_status::{TaskNotMoved, status_write, task_lock_row, tasks_lock},
};
use crate::{Setting, StorageError, Tx, outbox::Owned, session::sessions_park::sessions_open};

/// Sessions that the end of a plan unparks in its transaction; a task has fewer.
const SESSIONS_MAX: i64 = 1_000;

/// Locks a task against others that move it, with those that wait for it.
pub async fn task_lock(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<(), StorageError> {
    tasks_lock(tx, account, task, &[]).await.map(drop)
}

/// The same with others, which the task is to wait for.
pub async fn tasks_lock_with(
    tx: &Tx,
    account: &AccountId,
    task: &TaskId,
    others: &[TaskId],
) -> Result<(), StorageError> {
    tasks_lock(tx, account, task, others).await.map(drop)
}

/// Relies on question_of_task: the kind is compared in a form that question_decision does not serve.
pub const PLAN_OPEN: &str = "
    select q.id from question q
    where q.account_id = $1 and q.task_id = $2 and q.state = 'open' and coalesce(q.kind = 'plan', false)";

#[derive(FromQueryResult)]
struct PlanRow {
    id: QuestionId,
}

/// The plan of the task that awaits approval.
pub async fn plan_find(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Option<QuestionId>, StorageError> {
    let values = [account.into(), task.key().into()];
    let row: Option<PlanRow> = tx.one("find open plan", PLAN_OPEN, values).await?;
    Ok(row.map(|row| row.id))
}

#[derive(FromQueryResult)]
struct GateRow {
    revision: i32,
    audience: Option<Vec<String>>,
}

/// The task's own audience, else its account's. Relies on question_plan and primary keys.
pub const PLAN_NEXT: &str = "
    select coalesce((select max(q.plan_revision) from question q
                     where q.account_id = t.account_id and q.task_id = t.id and q.plan_revision is not null), 0) + 1 as revision,
           coalesce(t.plan_audience, a.plan_audience) as audience
    from task t join account a on a.id = any (array[t.account_id])
    where t.account_id = $1 and t.id = $2";

const PLAN_BEGIN: &str = "update task set status_before = $3, plan_approved = false, plan_submitted = true where account_id = $1 and id = $2";

/// A plan to submit.
#[derive(Clone, Debug)]
pub struct NewPlan<'a> {
    pub account: &'a AccountId,
    /// As its client spelled it.
    pub task: &'a TaskId,
    pub asker: Asker,
    pub by: &'a Actor,
    pub summary: &'a str,
    pub plan: &'a str,
}

/// Opens a plan's question in place of an open one, and moves the task to `awaiting_approval`. Gives the question and the plan's
/// revision. A task that has ended is not there. The caller holds the locks of the task's sessions and of the asker's.
pub async fn plan_submit(
    tx: &Tx,
    new: &NewPlan<'_>,
    setting: &Setting<'_>,
) -> Result<Result<(QuestionId, i32, Vec<Owned>), TaskNotMoved>, StorageError> {
    let (account, task) = (new.account, new.task);
    let Some(row) = task_lock_row(tx, account, task)
        .await?
        .filter(|row| !row.status.is_terminal())
    else {
        return Ok(Err(TaskNotMoved::NotThere));
    };
    let blockers = blockers_open(tx, account, task).await?;
    if !blockers.is_empty() {
        return Ok(Err(TaskNotMoved::BlockedBy(blockers)));
    }
    let (mut status, mut messages) = (row.status, Vec::new());
    if let Some(old) = plan_find(tx, account, task).await? {
        let ending = Ending::Withdrawn {
            by: new.by,
            reason: Some("another plan took its place"),
            is_asker: true,
        };
        if let Ok((_, _, told)) = question_end(tx, account, old, &ending, setting).await? {
            messages.extend(told);
        }
        status = task_lock_row(tx, account, task).await?.map_or(status, |row| row.status);
    }
    let values = [account.into(), task.key().into()];
    let next: Option<GateRow> = tx.one("number plan", PLAN_NEXT, values).await?;
    let next = next.ok_or_else(|| StorageError::unreadable("number plan", "no row"))?;
    let asked = next.audience.unwrap_or_default();
    let mut audience: Vec<Audience> = asked.iter().filter_map(|text| text.parse().ok()).collect();
    if audience.is_empty() {
        audience.push(Audience::DEFAULT);
    }
    let question = NewQuestion {
        account,
        about: About::Plan {
            revision: next.revision,
        },
        task: Some(task),
        asker: Some(new.asker),
        from: new.by,
        title: new.summary,
        body: new.plan,
        options: Choices::default(),
        multiple: false,
        free_text: true,
        audience,
        lapse_at: None,
        chain: 0,
    };
    let (id, told) = question_open(tx, &question, setting).await?;
    messages.extend(told);
    let values = [account.into(), task.key().into(), status.into()];
    tx.execute("begin plan", PLAN_BEGIN, values).await?;
    messages.extend(
        status_write(
            tx,
            (account, &row.display_id),
            (status, TaskStatus::AwaitingApproval),
            (new.by, None),
            setting,
        )
        .await?,
    );
    Ok(Ok((id, next.revision, messages)))
}

#[derive(FromQueryResult)]
struct BeforeRow {
    status: TaskStatus,
    status_before: Option<TaskStatus>,
}

const PLAN_BEFORE: &str = "select status, status_before from task where account_id = $1 and id = $2";
const PLAN_END: &str = "
    update task set status_before = null, plan_approved = $3 where account_id = $1 and id = $2";

/// What the end of a plan's question does: the task goes on, approved or as before, and what waited for the answer may start. The
/// caller holds the task's lock.
pub(crate) async fn plan_end(
    tx: &Tx,
    account: &AccountId,
    row: &QuestionRow,
    ending: &Ending<'_>,
    setting: &Setting<'_>,
) -> Result<Vec<Owned>, StorageError> {
    let Some(task) = &row.task else {
        return Ok(Vec::new());
    };
    let is_approved = ending.verdict() == Some(Verdict::Approved);
    let values = [account.into(), task.key().into()];
    let before: Option<BeforeRow> = tx.one("read task of plan", PLAN_BEFORE, values).await?;
    let values = [account.into(), task.key().into(), is_approved.into()];
    tx.execute("end plan", PLAN_END, values).await?;
    let mut messages = Vec::new();
    let waiting = before.filter(|before| before.status == TaskStatus::AwaitingApproval);
    if let Some(before) = waiting.filter(|_| ending.state() != QuestionState::Cancelled) {
        let to = match is_approved {
            true => TaskStatus::InProgress,
            false => before.status_before.unwrap_or(TaskStatus::InProgress),
        };
        let to = unless_blocked(tx, (account, task), to).await?;
        let system = Actor::system();
        let by = match ending {
            Ending::Answered { by, .. } | Ending::Withdrawn { by, .. } => by,
            Ending::Lapsed | Ending::Cancelled { .. } => &system,
        };
        let changed = (before.status, to);
        messages.extend(status_write(tx, (account, task), changed, (by, None), setting).await?);
    }
    let opened = sessions_open(tx, account, (Gate::Approval, row.id.into()), SESSIONS_MAX, setting).await?;
    messages.extend(opened.1);
    Ok(messages)
}
