//! What the tools of the board share: which tasks are the caller's, and how they are shown (O10).

use contracts::Timestamp;
use domain::{AccountId, TaskId, TaskStatus};
use serde_json::{Map, Value, json};
use storage::lifecycle::dependencies::NotPlaced;

use super::{Running, ToolError, children::key_of};
use crate::{
    arguments::invalid_field,
    call::ToolAnswer,
    refusal::Refusal,
    store::{BoardTaskRow, PlaceRow, place_of},
};

/// A task on the board of the calling orchestrator; of another caller its own, or one that it was given.
pub(super) async fn own(running: Running<'_>, task: &TaskId) -> Result<PlaceRow, ToolError> {
    let facts = running.facts;
    let place = place_of(running.questions.tx, running.account, task).await?;
    let is_own = |place: &PlaceRow| match (facts.owner(), facts.task()) {
        (Some(owner), _) => place.board == Some(owner),
        (None, Some(own)) => {
            let is_worker = place.worker_task_id == Some(own.key()) && place.worker_agent_id == Some(facts.agent);
            own.key() == place.id.key() || is_worker
        }
        (None, None) => false,
    };
    let place = place.filter(is_own);
    place.ok_or_else(|| Refusal::not_there(task, facts).told().into())
}

/// The tasks that an argument names. None: it is not given.
pub(super) fn tasks_named(arguments: &Map<String, Value>, field: &str) -> Result<Option<Vec<TaskId>>, ToolError> {
    let Some(named) = arguments.get(field).and_then(Value::as_array) else {
        return Ok(None);
    };
    let named = named.iter().filter_map(Value::as_str);
    let read = |text: &str| TaskId::parse(text.trim()).map_err(|why| invalid_field(field, &why.to_string()).into());
    named.map(read).collect::<Result<Vec<_>, _>>().map(Some)
}

pub(super) fn status_named(arguments: &Map<String, Value>) -> Option<TaskStatus> {
    arguments
        .get("status")
        .and_then(Value::as_str)
        .and_then(TaskStatus::parse)
}

pub(super) fn not_placed(why: &NotPlaced) -> ToolError {
    ToolAnswer::refused(
        why.code(),
        format!("It cannot be placed so: {}.", why.message()),
        "Nothing was changed. Look up the tasks of your board, and call again.",
    )
    .into()
}

pub(super) fn shown(task: &BoardTaskRow, account: &AccountId) -> Value {
    let worker = task.worker_task.as_ref().zip(task.worker_agent);
    json!({
        "id": task.id,
        "session_id": worker.map(|(task, agent)| key_of(account, task, agent)),
        "parent_task_id": task.parent,
        "title": task.title,
        "description": task.description,
        "status": task.status,
        "blocked_by": task.blocked_by,
        "result": task.result,
        "created_at": Timestamp::from(task.created_at),
        "updated_at": Timestamp::from(task.updated_at),
    })
}
