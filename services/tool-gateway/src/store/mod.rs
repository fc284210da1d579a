//! Every query of this service: connection first, account always there. [`calls`] is the record that makes a call once,
//! [`sessions`] what decides about it, [`tasks`] what tools show.
//!
//! Order of locks, the same for every call: its own record, then (for a tool that moves a task) the task, then sessions
//! by id. Whoever closes sessions takes the task before them as well, so two that meet wait and do not block each other.

mod calls;
mod sessions;
mod tasks;

pub(crate) use calls::{call_find, call_finish, call_insert, is_same_request, savepoint, savepoint_rollback};
pub(crate) use sessions::{facts, session_find, session_lock, task_and_sessions_lock};
pub(crate) use tasks::{
    ActivityRow, AgentRow, MessageRow, TaskRow, activities_newest, agents_find, assignees, messages_newest, task_find,
};
