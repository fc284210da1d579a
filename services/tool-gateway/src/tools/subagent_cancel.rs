//! `subagent_cancel`: ends a branch of the session, with all below it.

use domain::BranchId;
use serde_json::{Map, Value, json};
use storage::session::branch_end::{Ending, Ends, branch_end};

use super::{Running, ToolError, ToolOutcome};
use crate::{
    call::{Effect, ToolAnswer},
    store::{self, BranchRow},
};

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let named = arguments["branch_id"].as_str().unwrap_or_default();
    let branch = found(running, named).await?;
    let by = running.facts.actor();
    let reason = arguments.get("reason").and_then(Value::as_str).map(str::trim);
    let ending = Ending::Cancelled {
        by: &by.name,
        reason: reason.filter(|reason| !reason.is_empty()),
    };
    let ends = Ends {
        ends: vec![(branch.id, ending)],
        closing: &[],
        tells: true,
    };
    let ended = branch_end(running.questions.tx, running.account, &ends, running.setting).await?;
    let now = ended.branches.iter().find(|(id, _)| *id == branch.id);
    let result = match now {
        Some((id, state)) => json!({"branch_id": id, "state": state}),
        None => {
            json!({"branch_id": branch.id, "state": branch.state, "note": "It had ended before. Nothing was changed."})
        }
    };
    Ok(Effect::new(result, ended.messages))
}

/// The branch of this session; another one's is not there.
async fn found(running: Running<'_>, named: &str) -> Result<BranchRow, ToolError> {
    let row = match BranchId::parse(named) {
        Ok(branch) => {
            let of = (running.session, branch);
            store::branch_of_session(running.questions.tx, running.account, of).await?
        }
        Err(_) => None,
    };
    row.ok_or_else(|| {
        ToolAnswer::failed(
            "not_found",
            "There is no subagent of this id in this conversation.",
            "Nothing was changed. Use an id that the call gave you which made the subagent.",
        )
        .into()
    })
}
