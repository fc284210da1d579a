//! The tools: one file each, with the same name as its definition in `contracts::tools`, which has the table.
//!
//! A handler works inside a transaction of one or many calls: its writes and its result are committed together. Before a
//! handler runs, the session is locked, the caller may use the tool on the task in the arguments, and the arguments match
//! the schema. The handler checks only what needs its own queries ([`Questions`]). It returns messages for the outbox and
//! publishes nothing. A tool that shares its transaction writes last: after that it cannot fail. A tool with statements of its own
//! has the transaction alone.

mod answer_question;
mod ask_model;
mod ask_question;
mod attribute_user;
mod board;
mod check_later;
mod check_messages;
mod children;
mod create_session;
mod create_task;
mod forward_to_user;
mod generate_media;
mod get_session_status;
mod list_personas;
mod list_sessions;
mod list_tasks;
mod memory_read;
mod memory_write;
mod models;
mod my_tasks;
mod no_reply;
mod questions;
mod read_media;
mod response_request;
mod send_message;
mod send_to_session;
mod subagent_cancel;
mod subagent_list;
mod subagent_spawn;
mod submit_plan;
mod task_context_read;
mod task_context_write;
mod task_history;
mod task_message;
mod task_status;
mod update_task;
mod withdraw_question;

use contracts::tools::ToolDefinition;
use domain::{AccountId, SessionId, TaskId};
use futures::future::BoxFuture;
use runtime::settings::Models;
use serde_json::{Map, Value};
use storage::{Setting, StorageError};
use uuid::Uuid;

pub(crate) use questions::Questions;

use crate::{
    arguments::{Schema, invalid_field},
    call::{CallFacts, Effect, ToolAnswer},
    refusal::Refusal,
    settings::BranchLimits,
    store,
};

pub(crate) struct Tool {
    pub definition: &'static ToolDefinition,
    pub schema: Schema,
    /// Its writes, its result and the call's record are one transaction, so it runs exactly once. A tool that calls somebody
    /// outside ends its transaction with what it wants from them (`Effect::outside`): the rest is an external call.
    pub run: Handler,
}

pub(crate) type Handler = for<'a> fn(Running<'a>, Map<String, Value>) -> BoxFuture<'a, ToolOutcome>;
pub(crate) type ToolOutcome = Result<Effect, ToolError>;

/// A call in progress, for a handler.
#[derive(Clone, Copy)]
pub(crate) struct Running<'a> {
    pub questions: &'a Questions<'a>,
    /// Id of the call's record. Ids of the rows that the call creates are derived from it.
    pub call: Uuid,
    pub account: &'a AccountId,
    pub session: SessionId,
    pub facts: &'a CallFacts,
    /// The task in the arguments; the caller may use it. [`task_existing`] checks whether it exists.
    pub task: Option<&'a TaskId>,
    /// Cause, hops and time of the call's effects.
    pub setting: &'a Setting<'a>,
    pub branches: &'a BranchLimits,
    pub models: &'a Models,
}

#[derive(Debug)]
pub(crate) enum ToolError {
    ToolAnswer(ToolAnswer),
    Storage(StorageError),
}

impl From<ToolAnswer> for ToolError {
    fn from(answer: ToolAnswer) -> Self {
        Self::ToolAnswer(answer)
    }
}

impl From<StorageError> for ToolError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

/// All tools, each with its schema compiled once.
pub(crate) struct Toolbox(Vec<Tool>);

macro_rules! handlers {
    ($($name:ident)+) => {
        /// In the order of [`contracts::tools::all`].
        const HANDLERS: &[Handler] = &[$(|running, arguments| Box::pin($name::run(running, arguments))),+];
    };
}
contracts::each_tool!(handlers);

impl Toolbox {
    pub(crate) fn new() -> Toolbox {
        let tools = contracts::tools::all().iter().zip(HANDLERS);
        let tools = tools.map(|(definition, handler)| Tool {
            schema: Schema::compile(&definition.parameters),
            definition,
            run: *handler,
        });
        Toolbox(tools.collect())
    }

    /// The tool with this name or former name.
    pub(crate) fn find(&self, name: &str) -> Option<&Tool> {
        self.0
            .iter()
            .find(|tool| tool.definition.name == name || tool.definition.aliases.contains(&name))
    }
}

/// The task in the arguments of a tool whose schema requires it.
fn task_named(running: Running<'_>) -> &TaskId {
    running.task.expect("the tool's schema requires the task")
}

/// The turn's task, for a tool that is offered with a task only.
fn task_of_turn(running: Running<'_>) -> &TaskId {
    running.facts.task().expect("the tool is offered to turns with a task")
}

/// The row of a task that the caller may use. A missing task gets the same answer as another caller's task.
async fn task_existing(running: Running<'_>, task: &TaskId) -> Result<store::TaskRow, ToolError> {
    let row = running.questions.task((running.account.clone(), task.clone())).await;
    row.ok_or_else(|| Refusal::not_there(task, running.facts).told().into())
}

/// Refuses what would wait beyond the end of the turn's task: nothing would move it on.
async fn task_open(running: Running<'_>) -> Result<(), ToolError> {
    let Some(task) = running.facts.task() else {
        return Ok(());
    };
    let row = running.questions.task((running.account.clone(), task.clone())).await;
    let Some(row) = row.filter(|row| row.status.is_terminal()) else {
        return Ok(());
    };
    let answer = ToolAnswer::refused(
        "task_ended",
        format!("Task {task} has ended ({}).", row.status),
        "Nothing was changed. Say in your reply what is left; a message from a person can take it up again.",
    );
    Err(answer.into())
}

/// A text that the schema limits in characters, limited in bytes.
fn body<'a>(arguments: &'a Map<String, Value>, field: &str) -> Result<&'a str, ToolError> {
    let text = arguments[field].as_str().unwrap_or_default();
    let bytes_max = contracts::tools::BODY_BYTES_MAX;
    if text.len() > bytes_max {
        let what = format!(
            "{} bytes; at most {bytes_max} are taken, so shorten it or split it",
            text.len()
        );
        return Err(invalid_field(field, &what).into());
    }
    if text.trim().is_empty() {
        return Err(invalid_field(field, "must not be blank").into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_found_by_every_name() {
        let toolbox = Toolbox::new();
        for definition in contracts::tools::all() {
            for name in definition.aliases.iter().chain([&definition.name]) {
                let found = toolbox.find(name).map(|tool| tool.definition.name);
                assert_eq!(found, Some(definition.name));
            }
        }
        assert!(toolbox.find("exec").is_none());
    }
}
