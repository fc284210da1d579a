//! `subagent_list`: the branches of the session, newest first.

use contracts::{Timestamp, tools::subagent_list::LISTED_MAX};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::{Running, ToolOutcome};
use crate::{
    call::Effect,
    store::{self, BranchRow},
};

pub(super) async fn run(running: Running<'_>, _: Map<String, Value>) -> ToolOutcome {
    let (tx, now) = (running.questions.tx, running.facts.now);
    let rows = store::branches_of_session(tx, running.account, running.session, LISTED_MAX).await?;
    let subagents: Vec<Value> = rows.iter().map(|row| shown(row, now)).collect();
    Ok(Effect::new(json!({"subagents": subagents}), Vec::new()))
}

fn shown(row: &BranchRow, now: OffsetDateTime) -> Value {
    let mut shown = json!({
        "branch_id": row.id,
        "session_id": row.session_id,
        "agent": row.agent_slug,
        "label": row.label,
        "context": row.context,
        "state": row.state,
        "age_s": (now - row.created_at).whole_seconds().max(0),
    });
    match row.ended_at {
        None => shown["deadline_at"] = Timestamp::from(row.deadline_at).to_string().into(),
        Some(at) => shown["ended_at"] = Timestamp::from(at).to_string().into(),
    }
    if let Some(detail) = &row.detail {
        shown["detail"] = detail.as_str().into();
    }
    shown
}
