//! `create_session`: gives a piece of work to a session on the orchestrator's own board (`storage::lifecycle::child_open`). All checks come
//! before anything is written. The ids of the task and of the request follow from the call.

use contracts::tools::create_session::CREATED_OF_TURN_MAX;
use domain::{AgentId, Owner, TaskId, TaskStatus, title_of};
use serde_json::{Map, Value, json};
use storage::lifecycle::{ChildFacts, ChildPersona, NewChild, child_facts, child_open};
use uuid::Uuid;

use super::{
    Running, ToolError, ToolOutcome, body,
    children::{key_of, owner, persona},
    response_request::agents_found,
    send_to_session::{hops_left, request},
    task_existing,
};
use crate::{
    call::{Effect, ToolAnswer},
    store::{self, ChildName, PersonaRow, child_find, children_room, persona_for, personas_for},
};

const NAME: &str = "create_session";
const NOTHING: &str = "No session was created.";
/// Names that an error lists.
const LISTED_MAX: i64 = 10;

pub(super) async fn run(running: Running<'_>, arguments: Map<String, Value>) -> ToolOutcome {
    let (tx, account, facts) = (running.questions.tx, running.account, running.facts);
    let prompt = body(&arguments, "prompt")?;
    let owner = owner(running)?;
    hops_left(running)?;
    room(running, &owner).await?;
    let account_facts = child_facts(tx, account).await?;
    let asked = match text(&arguments, "persona") {
        Some(named) => Some(persona_named(running, &owner, named).await?),
        None => None,
    };
    let agent = agent(running, &arguments, (asked.as_ref(), &account_facts)).await?;
    let (task, title) = match running.task {
        Some(task) => (task_existing(running, task).await?.id, None),
        None => {
            let title = text(&arguments, "title").map_or_else(|| title_of(prompt), str::to_owned);
            (new_task(running)?, Some(title))
        }
    };
    let by = facts.actor();
    let new = NewChild {
        account,
        owner: &owner,
        task: &task,
        title: title.as_deref(),
        agent,
        scope: account_facts.session_scope,
        persona: asked.as_ref().map(|persona| ChildPersona {
            id: persona.id,
            by: owner.user().map(ToString::to_string),
            is_inferred: text(&arguments, "persona_from") != Some("user"),
        }),
        parent: Some(running.session),
        adopts: false,
        is_planned: arguments.contains_key("plan_gate"),
        by: &by,
    };
    let opened = child_open(tx, &new, running.setting).await?;
    let mut opened = opened.ok_or_else(|| not_yours(&task))?;
    let (id, told) = request(running, (&task, agent), prompt, |asked| asked);
    opened.messages.push(told);
    let child = child_find(tx, account, &owner, &ChildName::OfAgent(task.clone(), agent)).await?;
    let (session, key, is_reused) = match opened.session {
        Some(session) => (json!(session.id), session.key, session.is_reused),
        // The agent has one session for all of its work, perhaps none yet.
        None => (Value::Null, key_of(account, &task, agent), child.is_some()),
    };
    let result = json!({
        "session_id": session,
        "session_key": key,
        "task_id": task,
        "agent": child.as_ref().map(|child| child.agent_slug.as_str()),
        "persona": child.as_ref().map(persona),
        "status": "active",
        "reused": is_reused,
        "notification_id": id,
        "note": "Its work is not this result. Finish your turn, or go on with what does not depend on it.",
    });
    Ok(Effect::new(result, opened.messages))
}

fn text<'a>(arguments: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    let text = arguments.get(field)?.as_str()?.trim();
    (!text.is_empty()).then_some(text)
}

fn refused(code: &'static str, why: impl Into<String>, instead: &str) -> ToolError {
    ToolAnswer::refused(code, why, format!("{NOTHING} {instead}")).into()
}

fn not_yours(task: &TaskId) -> ToolError {
    let why = format!("Task {task} is not on your board, or has ended.");
    refused("task_not_found", why, "Leave the task out, and a new one is made.")
}

/// The id of a task that is made follows from the call.
pub(super) fn new_task(running: Running<'_>) -> Result<TaskId, ToolError> {
    let id = Uuid::new_v5(&running.call, b"task").to_string();
    TaskId::parse(&id).map_err(|error| storage::StorageError::unreadable("name a task", error).into())
}

/// Whether one more may be made.
async fn room(running: Running<'_>, owner: &Owner) -> Result<(), ToolError> {
    let Some(turn) = &running.facts.turn else {
        let why = "No turn of this conversation is in progress, and sessions are created during a turn.";
        return Err(refused("no_turn", why, "Create it in the next turn."));
    };
    let limit = running.branches.children_open_max;
    let open: Vec<TaskStatus> = TaskStatus::ALL
        .iter()
        .copied()
        .filter(|status| !status.is_terminal())
        .collect();
    let room = children_room(
        running.questions.tx,
        running.account,
        owner,
        (&open, limit),
        (turn.id.uuid(), NAME),
    )
    .await?;
    if room.of_turn >= CREATED_OF_TURN_MAX {
        let why =
            format!("This turn has created {CREATED_OF_TURN_MAX} sessions, and no more may be created in one turn.");
        return Err(refused("child_limit", why, "Go on in the next turn."));
    }
    if room.open >= limit {
        let why = format!("{} sessions of yours are open, at most {limit} may be.", room.open);
        let instead = "Write to one of them, or wait until the task of one has ended.";
        return Err(refused("child_limit", why, instead));
    }
    Ok(())
}

async fn persona_named(running: Running<'_>, owner: &Owner, named: &str) -> Result<PersonaRow, ToolError> {
    let (tx, account) = (running.questions.tx, running.account);
    if let Some(found) = persona_for(tx, account, owner, named).await? {
        return Ok(found);
    }
    let there = personas_for(tx, account, owner, LISTED_MAX).await?;
    let slugs: Vec<&str> = there.iter().map(|persona| persona.slug.as_str()).collect();
    let there = match slugs.is_empty() {
        true => "There is none.".to_owned(),
        false => format!("Some that there are: {}.", slugs.join(", ")),
    };
    let why = format!("There is no persona of this name that you may use. {there}");
    Err(refused(
        "unknown_persona",
        why,
        "Call again with another one, or without.",
    ))
}

/// The agent that is named, else the persona's, else the account's. It is held: it is not removed before its session is there.
async fn agent(
    running: Running<'_>,
    arguments: &Map<String, Value>,
    (persona, account): (Option<&PersonaRow>, &ChildFacts),
) -> Result<AgentId, ToolError> {
    let named = match text(arguments, "agent") {
        Some(named) => agents_found(running, &[named], NOTHING)
            .await?
            .pop()
            .map(|agent| agent.id),
        None => None,
    };
    let from_persona = persona.and_then(|persona| persona.agent_id);
    for agent in [named, from_persona, account.default_agent].into_iter().flatten() {
        let there = store::agents_share(running.questions.tx, running.account, vec![agent]).await?;
        if there.contains(&agent) {
            return Ok(agent);
        }
    }
    let why = "No agent is named, and neither the persona nor the account says which one works.";
    Err(refused(
        "no_agent",
        why,
        "Call again with an agent, or ask whom you work for which one.",
    ))
}
