//! Every query of this service: connection first, account always. [`calls`] is the record that runs a call only once,
//! [`external`] that of a call of somebody outside,
//! [`sessions`] the rows that decide a call, [`tasks`] the rows that tools read. Each query is for many calls at once.
//!
//! Order of locks, the same for every transaction: for a tool that changes what waits for what, the account's graph; for one that moves a
//! task, which runs alone, the task, with those that wait for it; then sessions
//! by account and id; then branches; then the calls' records. Closing sessions locks the task before them as well, so two such
//! transactions cannot deadlock.

mod board;
mod branches;
mod calls;
mod children;
mod external;
mod later;
mod mail;
mod memory;
mod people;
mod questions;
mod sessions;
mod tasks;

use sea_orm::{DbErr, FromQueryResult, QueryResult, Value};
use storage::{StorageError, Tx};

pub use board::{BOARD_LIST, WORKER_TASKS};
pub use branches::{
    BASE_ACTIVITIES, BASE_MESSAGES, BASES_FIND, BRANCH_OF_SESSION, BRANCHES_OF_SESSION, CONTEXT_OF_BRANCH,
};
pub use calls::CALLS_INSERT;
pub use children::{
    CHILD_FIND, CHILD_QUEUE, CHILD_TURNS, CHILDREN_LIST, CHILDREN_ROOM, GUESTS_LIST, PERSONA_FOR, PERSONAS_FOR,
};
pub use external::{ARTIFACTS_FIND, CALL_RUNNING, CALL_TAKE};
pub use memory::TURN_SURROUNDINGS;
pub use questions::{EXECUTES, UNREAD};
pub use sessions::{AGENTS_SHARE, FACTS, SESSIONS_LOCK_FREE, SESSIONS_OF_QUESTION, TASK_OF_CALL};
pub use tasks::{ACTIVITIES_NEWEST, ASSIGNEES, MESSAGES_NEWEST, TASKS_FIND};

pub(crate) use board::{BoardTaskRow, PlaceRow, board_list, place_of, worker_tasks};
pub(crate) use branches::{
    BaseAsked, BaseRows, BranchRow, bases_read, branch_of_session, branches_of_session, context_of_branch,
};
use calls::EndedRow;
pub(crate) use calls::{
    CallQuestion, CallRow, EndedCall, call_end, call_find, call_lock, call_question, calls_insert, is_same_request,
    recorded, savepoint, savepoint_rollback,
};
pub(crate) use children::{
    ChildName, ChildRow, GuestRow, PersonaRow, WaitingRow, board_of, child_find, child_queue, child_turns,
    children_list, children_room, guests_list, persona_for, personas_for,
};
pub(crate) use external::{
    ArtifactRow, RunningRow, artifacts_find, call_finish, call_keep, call_runner, call_running, call_start, call_take,
    calls_running,
};
pub use later::LATER;
pub(crate) use later::{Later, later};
pub use mail::MAIL_READ;
pub(crate) use mail::{MailRow, mail_read};
pub(crate) use memory::{Surroundings, turn_surroundings};
pub use people::{ITEM_SENDER, MEMBER_BY_ADDRESS};
pub(crate) use people::{item_sender, member_by_address};
pub(crate) use questions::{executes, is_unread};
pub(crate) use sessions::{
    agents_share, board_lock, branch_lock, facts, question_lock, session_facts, session_find, session_lock,
    sessions_lock_free, spawn_lock, task_and_sessions_lock,
};
pub(crate) use tasks::{
    ActivityRow, AgentRow, MessageRow, NamedAgents, Newest, TaskName, TaskRow, activities_newest, agents_find,
    assignees, messages_newest, tasks_find,
};

/// A row that answers the question with this number, from 1 (column `place`).
struct Answer<T> {
    place: usize,
    row: T,
}

impl<T: FromQueryResult> FromQueryResult for Answer<T> {
    fn from_query_result(row: &QueryResult, prefix: &str) -> Result<Answer<T>, DbErr> {
        let place: i64 = row.try_get(prefix, "place")?;
        Ok(Answer {
            place: usize::try_from(place).map_err(|error| DbErr::Type(error.to_string()))?,
            row: T::from_query_result(row, prefix)?,
        })
    }
}

/// The rows of each of so many questions, in the statement's order.
async fn each<T: FromQueryResult + Send>(
    tx: &Tx,
    attempt: &'static str,
    sql: &'static str,
    questions: usize,
    values: impl IntoIterator<Item = Value>,
) -> Result<Vec<Vec<T>>, StorageError> {
    let rows: Vec<Answer<T>> = tx.rows(attempt, sql, values).await?;
    let mut answers: Vec<Vec<T>> = (0..questions).map(|_| Vec::new()).collect();
    for Answer { place, row } in rows {
        answers[place - 1].push(row);
    }
    Ok(answers)
}
