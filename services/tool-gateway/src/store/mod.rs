//! Every query of this service: connection first, account always. [`calls`] is the record that runs a call only once,
//! [`sessions`] the rows that decide a call, [`tasks`] the rows that tools read.
//!
//! Order of locks, the same for every call: its own record, then (for a tool that moves a task) the task, then sessions
//! by id. Closing sessions locks the task before them as well, so two such transactions cannot deadlock.

mod calls;
mod sessions;
mod tasks;

pub(crate) use calls::{call_find, call_finish, call_insert, is_same_request, savepoint, savepoint_rollback};
pub(crate) use sessions::{facts, session_find, session_lock, task_and_sessions_lock};
pub(crate) use tasks::{
    ActivityRow, AgentRow, MessageRow, TaskRow, activities_newest, agents_find, assignees, messages_newest, task_find,
};
