//! The tasks of boards, for the tools that show and move them (O10).

use domain::{AccountId, AgentId, Owner, TaskId, TaskStatus, board::LISTED_MAX};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;

/// A task as its orchestrator, or its worker, sees it.
#[derive(Debug, FromQueryResult)]
pub(crate) struct BoardTaskRow {
    #[sea_orm(from_alias = "display_id")]
    pub id: TaskId,
    pub parent: Option<TaskId>,
    pub title: String,
    /// The beginning.
    pub description: String,
    pub status: TaskStatus,
    /// The beginning.
    pub result: Option<String>,
    /// The conversation that works on it: the one that it was given to, else its own.
    pub worker_task: Option<TaskId>,
    pub worker_agent: Option<AgentId>,
    pub blocked_by: serde_json::Value,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

/// Of tasks `t`.
macro_rules! shown {
    ($tasks:literal) => {
        concat!(
            "select t.display_id, p.display_id as parent, t.title, left(t.description, 300) as description, t.status,
                    left(t.result, 300) as result, coalesce(w.display_id, case when a.agent_id is not null then t.display_id end) as worker_task,
                    coalesce(t.worker_agent_id, a.agent_id) as worker_agent, t.created_at, t.updated_at, ",
            storage::blocked_by!(),
            " as blocked_by
             from ",
            $tasks,
            " t
             left join lateral (
                select * from task p where p.account_id = t.account_id and p.id = t.parent_task_id offset 0) p on true
             left join lateral (
                select * from task w where w.account_id = t.account_id and w.id = t.worker_task_id offset 0) w on true
             left join lateral (
                select ta.agent_id from task_assignee ta where ta.account_id = t.account_id and ta.task_id = t.id
                order by ta.agent_id limit 1) a on true"
        )
    };
}

/// Relies on task_board, whose order is requested, and on primary keys.
pub const BOARD_LIST: &str = concat!(
    shown!(
        "(select t.* from unnest($3::text[]) as w (status)
          cross join lateral (
             select * from task t where t.account_id = $1 and t.board = $2 and t.status = w.status
             order by t.created_at desc limit $4) t)"
    ),
    " where $5::text is null or t.id = $5 or t.worker_task_id = $5 and t.worker_agent_id = $6::uuid
     order by t.created_at desc limit $4"
);

/// Those of a board in these statuses; of a conversation, if one is named.
pub(crate) async fn board_list(
    tx: &Tx,
    account: &AccountId,
    board: &Owner,
    statuses: &[TaskStatus],
    worker: Option<(&TaskId, AgentId)>,
) -> Result<Vec<BoardTaskRow>, StorageError> {
    let values = [
        account.into(),
        board.to_string().into(),
        statuses.iter().map(TaskStatus::to_string).collect::<Vec<_>>().into(),
        LISTED_MAX.into(),
        worker.map(|(task, _)| task.key()).into(),
        worker.map(|(_, agent)| agent).into(),
    ];
    tx.rows("list tasks of a board", BOARD_LIST, values).await
}

/// Relies on task_worker, whose order is requested, and on primary keys.
pub const WORKER_TASKS: &str = concat!(
    shown!(
        "((select * from task t where t.account_id = $1 and t.id = $2)
          union all
          (select * from task t where t.account_id = $1 and t.worker_task_id = $2 and t.worker_agent_id = $3
           order by t.created_at desc limit $5))"
    ),
    " where $4::text is null or t.status = $4 order by t.created_at desc limit $5"
);

/// The conversation's own task, and those that it was given.
pub(crate) async fn worker_tasks(
    tx: &Tx,
    account: &AccountId,
    (task, agent): (&TaskId, AgentId),
    status: Option<TaskStatus>,
) -> Result<Vec<BoardTaskRow>, StorageError> {
    let values = [
        account.into(),
        task.key().into(),
        agent.into(),
        status.into(),
        LISTED_MAX.into(),
    ];
    tx.rows("list tasks of a session", WORKER_TASKS, values).await
}

/// Whose a task is.
#[derive(Debug, FromQueryResult)]
pub(crate) struct PlaceRow {
    #[sea_orm(from_alias = "display_id")]
    pub id: TaskId,
    pub status: TaskStatus,
    pub board: Option<Owner>,
    pub worker_task_id: Option<TaskId>,
    pub worker_agent_id: Option<AgentId>,
}

/// Relies on the primary key.
const PLACE: &str =
    "select display_id, status, board, worker_task_id, worker_agent_id from task where account_id = $1 and id = $2";

pub(crate) async fn place_of(tx: &Tx, account: &AccountId, task: &TaskId) -> Result<Option<PlaceRow>, StorageError> {
    tx.one("find board of task", PLACE, [account.into(), task.key().into()])
        .await
}
