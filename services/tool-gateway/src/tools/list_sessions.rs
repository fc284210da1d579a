//! `list_sessions`: the sessions on the orchestrator's board, and those in which it answers guests, the newest activity first. Of these, a
//! guest sees none, and the owner's own session not what was said.

use contracts::{
    Timestamp,
    tools::list_sessions::{LISTED_DEFAULT, LISTED_MAX},
};
use domain::{SessionKind, SessionPhase, TaskStatus};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::{
    Running, ToolOutcome,
    children::{owner, shown, status},
};
use crate::{
    call::Effect,
    store::{GuestRow, children_list, guests_list},
};

/// Tasks of one status that are looked at, by their newest.
const LOOKED_AT: i64 = 50;
/// Children of all of these, and guests.
const CHILDREN_MAX: i64 = 200;
const GUESTS_MAX: i64 = 200;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let owner = owner(running)?;
    let wanted = arguments.get("status").and_then(Value::as_str);
    let limit = limit(&arguments);
    let may_be = |of: &TaskStatus| !of.is_terminal() || wanted.is_none_or(|wanted| wanted == "completed");
    let statuses: Vec<(TaskStatus, i64)> = TaskStatus::ALL
        .iter()
        .copied()
        .filter(may_be)
        .map(|status| (status, LOOKED_AT))
        .collect();
    let all = children_list(running.questions.tx, running.account, &owner, &statuses, CHILDREN_MAX).await?;
    let guests = match (owner.user(), running.facts.session_kind) {
        (Some(user), SessionKind::Orchestrator) if wanted != Some("completed") => {
            guests_list(running.questions.tx, running.account, user, GUESTS_MAX).await?
        }
        (_, _) => Vec::new(),
    };
    let children = all
        .iter()
        .map(|child| (child.last_activity, status(child), shown(child, running.account)));
    let guests = guests
        .iter()
        .map(|guest| (guest.last_activity, guest_status(guest), guest_shown(guest)));
    let mut listed: Vec<(OffsetDateTime, &str, Value)> = children
        .chain(guests)
        .filter(|(_, status, _)| wanted.is_none_or(|wanted| *status == wanted))
        .collect();
    listed.sort_by_key(|(last_activity, ..)| std::cmp::Reverse(*last_activity));
    let listed: Vec<Value> = listed.into_iter().take(limit).map(|(.., shown)| shown).collect();
    Ok(Effect::new(json!({"sessions": listed}), Vec::new()))
}

/// A whole number, as JSON writes it: `3` or `3.0`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the schema says from 1 to 50"
)]
fn limit(arguments: &Map<String, Value>) -> usize {
    let limit = arguments.get("limit").and_then(Value::as_f64);
    limit.map_or(LISTED_DEFAULT, |limit| (limit as usize).clamp(1, LISTED_MAX))
}

fn guest_status(guest: &GuestRow) -> &'static str {
    match guest.phase == SessionPhase::Idle && guest.queued == 0 {
        true => "idle",
        false => "active",
    }
}

fn guest_shown(guest: &GuestRow) -> Value {
    json!({
        "session_id": guest.session_id,
        "session_key": guest.session_key,
        "guest": guest.guest,
        "status": guest_status(guest),
        "last_activity": Timestamp::from(guest.last_activity),
    })
}
