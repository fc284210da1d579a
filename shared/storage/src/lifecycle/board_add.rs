//! A task on an orchestrator's board, made with its place in one transaction (O10): above it, before it, and who works on it.

use domain::{AccountId, Actor, AgentId, Owner, TaskId, TaskStatus, board::OPEN_MAX};
use sea_orm::FromQueryResult;

use super::{
    NewTask,
    dependencies::{NotPlaced, Waits, dependencies_set, parent_set, worker_set},
    task_create,
};
use crate::{Setting, StorageError, Tx, outbox::Owned};

#[derive(Clone, Debug)]
pub struct NewOnBoard<'a> {
    pub account: &'a AccountId,
    pub board: &'a Owner,
    /// Fresh.
    pub task: &'a TaskId,
    pub title: &'a str,
    pub description: &'a str,
    /// None: the worker's task.
    pub parent: Option<&'a TaskId>,
    pub blockers: &'a [TaskId],
    /// An agent, and the task of its conversation, which is on the board.
    pub worker: Option<(&'a TaskId, AgentId)>,
    /// The work begins with a plan that somebody approves.
    pub is_planned: bool,
    pub by: &'a Actor,
}

#[derive(FromQueryResult)]
struct CountRow {
    open: i64,
}

/// Relies on task_board.
pub const BOARD_COUNT: &str = "
    select count(*) as open from unnest($3::text[]) as w (status)
    cross join lateral (
        select from task t where t.account_id = $1 and t.board = $2 and t.status = w.status order by t.created_at desc limit $4) t";

const BOARD: &str = "update task set board = $3 where account_id = $1 and id = $2";

/// Gives the messages, and whether the task waits for others. The caller holds the account's graph.
pub async fn board_add(
    tx: &Tx,
    new: &NewOnBoard<'_>,
    setting: &Setting<'_>,
) -> Result<Result<Vec<Owned>, NotPlaced>, StorageError> {
    const ATTEMPT: &str = "add to a board";
    let (account, task, board) = (new.account, new.task, new.board.to_string());
    let open = TaskStatus::ALL.iter().filter(|status| !status.is_terminal());
    let values = [
        account.into(),
        board.clone().into(),
        open.map(TaskStatus::to_string).collect::<Vec<_>>().into(),
        OPEN_MAX.into(),
    ];
    let count: Option<CountRow> = tx.one(ATTEMPT, BOARD_COUNT, values).await?;
    if count.is_some_and(|count| count.open >= OPEN_MAX) {
        return Ok(Err(NotPlaced::Full));
    }
    let of_task = NewTask {
        account,
        task,
        title: new.title,
        description: new.description,
        status: TaskStatus::Pending,
        is_planned: new.is_planned,
        by: new.by,
    };
    let made = task_create(tx, &of_task, setting).await?;
    let mut messages = made.ok_or_else(|| StorageError::unreadable(ATTEMPT, "the task's fresh id is used"))?;
    let values = [account.into(), task.key().into(), board.into()];
    tx.execute(ATTEMPT, BOARD, values).await?;
    if let Some(parent) = new.parent.or(new.worker.map(|(on, _)| on)) {
        let placed = parent_set(tx, (account, task), Some((parent, Some(new.board))), new.by, setting).await?;
        match placed {
            Ok(told) => messages.extend(told),
            Err(why) => return Ok(Err(why)),
        }
    }
    if !new.blockers.is_empty() {
        let waits = Waits {
            account,
            task,
            blockers: new.blockers,
            board: Some(new.board),
            by: new.by,
        };
        match dependencies_set(tx, &waits, setting).await? {
            Ok(written) => messages.extend(written.messages),
            Err(why) => return Ok(Err(why)),
        }
    }
    if new.worker.is_some() {
        messages.extend(worker_set(tx, (account, task), new.worker, new.by, setting).await?);
    }
    Ok(Ok(messages))
}
