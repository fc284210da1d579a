//! What the tools of orchestrators share: whose they are, and which sessions are theirs.

use contracts::{Timestamp, quote};
use domain::{
    AccountId, AgentId, Conversation, Generation, Owner, SessionAddress, SessionKey, SessionOf, SessionPhase,
    SessionRef, SessionScope, TaskId,
};
use serde_json::{Map, Value, json};

use super::{Running, ToolError};
use crate::{
    call::ToolAnswer,
    store::{ChildName, ChildRow, child_find},
};

/// Whose orchestrator the caller is.
pub(super) fn owner(running: Running<'_>) -> Result<Owner, ToolError> {
    let none = || ToolAnswer::refused("not_offered", "This tool is an orchestrator's.", "Answer without it.");
    running.facts.owner().ok_or_else(|| none().into())
}

/// The child in the arguments. What is not the caller's is as unknown as what is not there.
pub(super) async fn child(running: Running<'_>, arguments: &Map<String, Value>) -> Result<ChildRow, ToolError> {
    let named = arguments["session_id"].as_str().unwrap_or_default();
    let unknown = || {
        ToolAnswer::failed(
            "session_not_found",
            format!("There is no session {} of yours.", quote::line(named, NAME_BYTES_MAX).0),
            "Nothing was changed. Look up your sessions, and use an id or a key from there.",
        )
    };
    let (owner, account) = (owner(running)?, running.account);
    let name = match named.trim().parse() {
        Ok(SessionRef::Id(id)) => Some(ChildName::Session(id)),
        Ok(SessionRef::Address(address)) => of_agent(&address, running),
        Err(_) => None,
    };
    let name = name.ok_or_else(unknown)?;
    let found = child_find(running.questions.tx, account, &owner, &name).await?;
    found.ok_or_else(|| unknown().into())
}

/// Longest shown part of an unknown name.
const NAME_BYTES_MAX: usize = 256;

fn of_agent(address: &SessionAddress, running: Running<'_>) -> Option<ChildName> {
    match address.within(running.account)? {
        SessionOf::Task { task, agent } => Some(ChildName::OfAgent(task, agent)),
        SessionOf::Agent(_)
        | SessionOf::Branch { .. }
        | SessionOf::Orchestrator(_)
        | SessionOf::Guest { .. }
        | SessionOf::Replay(_) => None,
    }
}

/// `active`: it works, or has something to work on. `completed`: it is closed, or its task has ended.
pub(super) fn status(child: &ChildRow) -> &'static str {
    let is_at_rest = child.phase == SessionPhase::Idle && child.queued == 0;
    match (child.is_closed || child.task_status.is_terminal(), is_at_rest) {
        (true, _) => "completed",
        (false, true) => "idle",
        (false, false) => "active",
    }
}

/// The key of an agent's work on a task, whatever session it has.
pub(super) fn key_of(account: &AccountId, task: &TaskId, agent: AgentId) -> String {
    let of_task = Conversation::of(account, SessionScope::Task, Some(task), agent);
    of_task.key(Generation::FIRST).to_string()
}

/// The id and the key by which the caller names the child. Where an agent has one session for all of its work, its task tells which.
fn named(child: &ChildRow, account: &AccountId) -> (Value, String) {
    match SessionKey::parse(&child.session_key) {
        Ok(key) if matches!(key.of, SessionOf::Agent(_)) => (Value::Null, key_of(account, &child.task, child.agent_id)),
        Ok(_) | Err(_) => (json!(child.session_id), child.session_key.clone()),
    }
}

pub(super) fn shown(child: &ChildRow, account: &AccountId) -> Value {
    let (id, key) = named(child, account);
    json!({
        "session_id": id,
        "session_key": key,
        "task_id": child.task,
        "title": child.title,
        "task_status": child.task_status,
        "agent": child.agent_slug,
        "persona": persona(child),
        "status": status(child),
        "last_activity": Timestamp::from(child.last_activity),
        "summary": child.summary,
    })
}

pub(super) fn persona(child: &ChildRow) -> Value {
    match &child.persona {
        Some(slug) => json!({"slug": slug, "version": child.persona_version, "why": child.persona_why}),
        None => Value::Null,
    }
}
