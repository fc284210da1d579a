//! `memory_read`: what an orchestrator remembers (`storage::lifecycle::memory`). Whose memories they are follows from its session. A turn
//! about other people's messages, or in front of them, reads of them where work goes, and no more.

use contracts::tools::memory_read::{BYTES_MAX, READ_DEFAULT, READ_MAX};
use domain::{MemoryCategory, Owner, SessionKind};
use serde_json::{Map, Value, json};
use storage::lifecycle::memory::{MemoryOf, Wanted, memories_recall};

use super::{Running, ToolError, ToolOutcome, children::owner};
use crate::{
    call::Effect,
    store::{Surroundings, turn_surroundings},
};

const NOTE: &str = "This turn is about what somebody else has written, or is read by others: memories of other categories than \
                    repo_affinity and persona_preference are not shown in it.";

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (owner, now) = (owner(running)?, running.setting.now);
    let text = |field: &str| arguments.get(field).and_then(Value::as_str);
    let category = text("category").and_then(MemoryCategory::parse);
    let Surroundings { is_foreign, is_shared } = surroundings(running, &owner).await?;
    let is_own = !is_foreign && !is_shared;
    let mut categories = MemoryCategory::ALL.to_vec();
    categories.retain(|of| category.is_none_or(|category| category == *of) && (is_own || of.is_routing()));
    let wanted = Wanted {
        categories: &categories,
        query: text("query"),
        memories_max: limit(&arguments),
        bytes_max: BYTES_MAX,
        now,
    };
    let of = MemoryOf {
        account: running.account,
        owner: &owner,
        repository: None,
    };
    let found = memories_recall(running.questions.tx, of, &wanted).await?;
    let memories: Vec<Value> = found
        .rows
        .iter()
        .map(|row| {
            json!({
                "id": row.id,
                "category": row.category,
                "key": row.key(),
                "content": row.content,
                "relevance": rounded(row.relevance_now(now)),
            })
        })
        .collect();
    let mut result = json!({"memories": memories, "matched": found.matched});
    if !is_own {
        result["note"] = NOTE.into();
    }
    Ok(Effect::new(result, Vec::new()))
}

/// A whole number, as JSON writes it: `3` or `3.0`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the schema says from 1 to 50"
)]
fn limit(arguments: &Map<String, Value>) -> usize {
    let limit = arguments.get("limit").and_then(Value::as_f64);
    limit.map_or(READ_DEFAULT, |limit| (limit as usize).clamp(1, READ_MAX))
}

fn rounded(relevance: f64) -> f64 {
    (relevance * 1000.0).round() / 1000.0
}

/// A turn is the owner's own if all that it is about was written by the owner, an agent that works for the owner, or Signalbox. The
/// account's memory is everybody's of the account. Outside of a turn, nobody knows. A guest is somebody else in every turn.
pub(super) async fn surroundings(running: Running<'_>, owner: &Owner) -> Result<Surroundings, ToolError> {
    let of = |is: bool| Surroundings {
        is_foreign: is,
        is_shared: is,
    };
    if running.facts.session_kind == SessionKind::Guest {
        return Ok(of(true));
    }
    match (owner, &running.facts.turn) {
        (Owner::Account, _) => Ok(of(false)),
        (Owner::User(_), None) => Ok(of(true)),
        (Owner::User(user), Some(turn)) => {
            Ok(turn_surroundings(running.questions.tx, running.account, turn.id, user).await?)
        }
    }
}
