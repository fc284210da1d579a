//! `response_request`: publishes a notification for each named agent, on the usual subject and under the usual rules.
//! The resolver decides it; the hop count is one higher, so that a cycle of agents ends.

use contracts::{notification::NotificationMessage, quote};
use domain::{AgentId, AgentRef, NotificationId, TaskId};
use serde_json::{Map, Value, json};
use storage::outbox::Owned;
use uuid::Uuid;

use super::{Running, ToolError, ToolOutcome, body, task_existing};
use crate::{
    call::{Effect, ToolAnswer},
    store::{AgentRow, NamedAgents},
};

/// Maximum length of an unknown name in an error: the longest that a schema takes.
const NAME_BYTES_MAX: usize = domain::question::AUDIENCE_BYTES_MAX;
/// The type of the notification.
const KIND: &str = "response_request";

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let body = body(&arguments, "body")?;
    let task = match running.task {
        Some(task) => Some(task_existing(running, task).await?.id),
        None => running.facts.task().cloned(),
    };
    let asked = agents(running, &arguments).await?;
    if let Some(chat) = task.as_ref().filter(|task| running.facts.is_chat(task)) {
        chat_check(running, chat, &asked).await?;
    }
    let mut messages = Vec::with_capacity(asked.len());
    let mut requests = Vec::with_capacity(asked.len());
    for agent in &asked {
        let (id, message) = request(running, task.as_ref(), agent.id, body);
        messages.push(message);
        requests.push(json!({"agent": agent.slug, "agent_id": agent.id, "notification_id": id}));
    }
    let note = "They will answer in the thread, not here. Finish your turn.";
    Ok(Effect::new(
        json!({"task_id": task, "asked": requests, "note": note}),
        messages,
    ))
}

/// The named agents, each once; or an error that names the invalid ones.
async fn agents(running: Running<'_>, arguments: &Map<String, Value>) -> Result<Vec<AgentRow>, ToolError> {
    let names = arguments["agents"].as_array().into_iter().flatten();
    let names: Vec<&str> = names.filter_map(Value::as_str).collect();
    agents_named(running, &names).await
}

/// The agents of these names, in their order; or an error that names those that are unknown. `refusal`: what the error says of the
/// call.
pub(super) async fn agents_found(
    running: Running<'_>,
    names: &[&str],
    refusal: &str,
) -> Result<Vec<AgentRow>, ToolError> {
    // An invalid name gets the same answer as an unknown one.
    let named: Vec<(&str, Option<AgentRef>)> = names
        .iter()
        .map(|name| {
            let plain = name.trim().trim_start_matches('@').to_ascii_lowercase();
            (*name, AgentRef::parse(&plain).ok())
        })
        .collect();
    let refs: Vec<AgentRef> = named.iter().filter_map(|(_, one)| one.clone()).collect();
    let asked = NamedAgents {
        account: running.account.clone(),
        named: refs,
    };
    let there = running.questions.agents(asked).await;
    let find = |one: &AgentRef| {
        there.iter().find(|agent| match one {
            AgentRef::Id(wanted) => *wanted == agent.id,
            AgentRef::Slug(wanted) => *wanted == agent.slug,
        })
    };
    let mut found: Vec<AgentRow> = Vec::new();
    let mut unknown: Vec<&str> = Vec::new();
    for (name, one) in &named {
        match one.as_ref().and_then(find) {
            Some(agent) => found.push(agent.clone()),
            None => unknown.push(name),
        }
    }
    if !unknown.is_empty() {
        let answer = ToolAnswer::failed(
            "unknown_agent",
            format!("There is no agent {} in this account.", quoted(&unknown)),
            format!("{refusal} Call again with names that you know, or say in your reply whom you are missing."),
        );
        return Err(answer.into());
    }
    Ok(found)
}

/// The same, each once, and never the caller.
pub(super) async fn agents_named(running: Running<'_>, names: &[&str]) -> Result<Vec<AgentRow>, ToolError> {
    let mut found: Vec<AgentRow> = Vec::new();
    for agent in agents_found(running, names, "Nobody was asked.").await? {
        if !found.contains(&agent) {
            found.push(agent);
        }
    }
    if found.iter().any(|agent| agent.id == running.facts.agent) {
        let answer = ToolAnswer::failed(
            "own_name",
            format!("You are {}: you cannot ask yourself.", running.facts.agent_slug),
            "Nobody was asked. Leave your own name out, or do it now.",
        );
        return Err(answer.into());
    }
    Ok(found)
}

/// Quotes unknown names, which may be any text.
fn quoted(names: &[&str]) -> String {
    let lines: Vec<String> = names.iter().map(|name| quote::line(name, NAME_BYTES_MAX).0).collect();
    lines.join(", ")
}

/// Notifications of the coordinator's chat reach only the coordinator (S6). Other agents must be asked on a task of
/// their own.
async fn chat_check(running: Running<'_>, chat: &TaskId, asked: &[AgentRow]) -> Result<(), ToolError> {
    let coordinators = running
        .questions
        .assignees((running.account.clone(), chat.clone()))
        .await;
    let strangers: Vec<&str> = asked
        .iter()
        .filter(|agent| !coordinators.contains(agent))
        .map(|agent| agent.slug.as_str())
        .collect();
    if strangers.is_empty() {
        return Ok(());
    }
    let answer = ToolAnswer::failed(
        "coordinator_chat",
        format!(
            "Task {chat} is the coordinator's chat, and {} has no part in it.",
            strangers.join(", ")
        ),
        "Nobody was asked. Call again with the task that it is about in task_id.",
    );
    Err(answer.into())
}

/// The notification for one agent. Its id is derived from the call and the agent.
fn request(running: Running<'_>, task: Option<&TaskId>, agent: AgentId, body: &str) -> (NotificationId, Owned) {
    let id = Uuid::new_v5(&running.call, agent.uuid().as_bytes()).into();
    let title = format!("Request from {}", running.facts.agent_slug);
    let mut message = NotificationMessage::new(KIND, running.facts.actor(), title, body.to_owned());
    if let Some(turn) = &running.facts.turn {
        message = message.with("turn_id", turn.id.to_string());
    }
    let message = message.with("tool_call_id", running.call.to_string());
    let told = running
        .setting
        .agent_told((running.account, task), (agent, &id), message);
    (id, told)
}
