//! `list_sessions`: the sessions on the orchestrator's board, the newest activity first.

use contracts::tools::list_sessions::{LISTED_DEFAULT, LISTED_MAX};
use domain::TaskStatus;
use serde_json::{Map, Value, json};

use super::{
    Running, ToolOutcome,
    children::{owner, shown, status},
};
use crate::{call::Effect, store::children_list};

/// Tasks of one status that are looked at, by their newest.
const LOOKED_AT: i64 = 50;
/// Children of all of these.
const CHILDREN_MAX: i64 = 200;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let owner = owner(running)?;
    let wanted = arguments.get("status").and_then(Value::as_str);
    let limit = arguments.get("limit").and_then(Value::as_i64).unwrap_or(LISTED_DEFAULT);
    let limit = limit.clamp(1, LISTED_MAX);
    let may_be = |of: &TaskStatus| !of.is_terminal() || wanted.is_none_or(|wanted| wanted == "completed");
    let statuses: Vec<(TaskStatus, i64)> = TaskStatus::ALL
        .iter()
        .copied()
        .filter(may_be)
        .map(|status| (status, LOOKED_AT))
        .collect();
    let all = children_list(running.questions.tx, running.account, &owner, &statuses, CHILDREN_MAX).await?;
    let listed = all
        .iter()
        .filter(|child| wanted.is_none_or(|wanted| status(child) == wanted));
    let listed: Vec<Value> = listed
        .take(usize::try_from(limit).unwrap_or_default())
        .map(|child| shown(child, running.account))
        .collect();
    Ok(Effect::new(json!({"sessions": listed}), Vec::new()))
}
