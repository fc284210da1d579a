//! `POST /api/sessions`: a person, or a service, gives a piece of work to a session of an agent: its task, on the board of the person's
//! orchestrator, or of the account's, and its first request.

use api::sessions::{NewSession, Session};
use axum::{extract::State, http::StatusCode};
use domain::{
    AccountId, AgentId, AgentRef, Conversation, Generation, Owner, QueueMode, SessionId, SessionKey, SessionScope,
    TaskId, title_of,
};
use runtime::http::Problem;
use storage::{
    StorageError, Tx,
    lifecycle::{ChildFacts, ChildPersona, NewChild, child_facts, child_open},
    session::session_ensure::session_ensure,
};
use uuid::Uuid;

use crate::{
    agents,
    app::App,
    auth::Access,
    error::{ApiError, invalid_field, unknown_agent, unknown_task},
    idempotency::{Answer, Done, Post},
    personas::http::usable,
    route::routes,
    sessions::{
        prompt::{prompted, session_of},
        store::session_find,
    },
    tasks::store::task_lock,
};

routes! {
    "new sessions": "Work for a session of its own";
    /// Create a session: a task, unless one is named, and a first request to an agent: the named one, else the persona's, else the account's
    /// default, else the only one. If the agent has an open session on the task, the request goes there.
    POST "/api/sessions" ChangeTasks => open or 409;
}

async fn open(
    State(app): State<App>,
    access: Access,
    Post { body, once }: Post<NewSession>,
) -> Result<Answer<201, Session>, ApiError> {
    let account = &access.account;
    app.has_room(account)?;
    let owner = match access.caller.person() {
        Some(person) => Owner::User(person.id.clone()),
        None => Owner::Account,
    };
    once.run(&app, access.party(), async |work| {
        let (tx, by) = (&work.tx, access.caller.actor());
        let setting = app.setting(None, work.now);
        // The task is locked before its sessions.
        let (task, title) = match &body.task {
            Some(task) => {
                let row = task_lock(tx, account, task).await?.ok_or_else(|| unknown_task(task))?;
                let spelled = TaskId::parse(&row.display_id);
                (
                    spelled.map_err(|error| StorageError::unreadable("read a task's id", error))?,
                    None,
                )
            }
            None => {
                let title = body
                    .title
                    .as_ref()
                    .map_or_else(|| title_of(&body.prompt), ToString::to_string);
                (new_task()?, Some(title))
            }
        };
        let facts = child_facts(tx, account).await?;
        let persona = match &body.persona {
            Some(persona) => Some(usable(tx, &access, persona).await?),
            None => None,
        };
        let its_agent = persona.as_ref().and_then(|persona| persona.agent.as_deref());
        let its_agent = its_agent.and_then(|agent| AgentRef::parse(agent).ok());
        let agent = agent(tx, account, body.agent.as_ref().or(its_agent.as_ref()), &facts).await?;
        let parent = match &body.parent_session_id {
            Some(session) => Some(parent(tx, account, session, &owner).await?),
            None => None,
        };
        let new = NewChild {
            account,
            owner: &owner,
            task: &task,
            title: title.as_deref(),
            agent,
            scope: facts.session_scope,
            persona: persona.map(|persona| ChildPersona {
                id: persona.id,
                by: Some(access.caller.author_id().to_owned()),
                is_inferred: false,
            }),
            parent,
            adopts: true,
            is_planned: false,
            by: &by,
        };
        let opened = child_open(tx, &new, &setting).await?.ok_or_else(|| task_taken(&task))?;
        let mut messages = opened.messages;
        let conversation = Conversation::of(account, facts.session_scope, Some(&task), agent);
        let session = match opened.session {
            Some(session) => session.id,
            None => {
                let ensured = session_ensure(tx, &conversation, None, &setting).await?;
                let (session, opened) = ensured.ok_or_else(Problem::not_found)?;
                messages.extend(opened);
                session.id
            }
        };
        // Where the agent has one session for all of its work, the resolver takes it there.
        let of_task = Conversation::of(account, SessionScope::Task, Some(&task), agent);
        let to = (of_task.key(Generation::FIRST).to_string(), Some(task));
        let (_, prompt) = prompted(&app, work, &access, to, (body.prompt.to_string(), QueueMode::Followup)).await?;
        messages.push(prompt);
        let session = session_find(tx, account, session)
            .await?
            .ok_or_else(Problem::not_found)?;
        Ok(Done::new(session).with(messages))
    })
    .await
}

fn new_task() -> Result<TaskId, StorageError> {
    TaskId::parse(&Uuid::now_v7().to_string()).map_err(|error| StorageError::unreadable("name a task", error))
}

async fn agent(
    tx: &Tx,
    account: &AccountId,
    named: Option<&AgentRef>,
    facts: &ChildFacts,
) -> Result<AgentId, ApiError> {
    match named {
        Some(named) => {
            let found = agents::store::agent_find(tx, account, named).await?;
            Ok(AgentId(found.ok_or_else(|| unknown_agent(named))?.id))
        }
        None => facts.default_agent.ok_or_else(|| {
            let detail = "name an agent: neither the persona nor the account has a default one, and the account has not exactly one agent";
            Problem::new(StatusCode::BAD_REQUEST, "no_agent").detail(detail).into()
        }),
    }
}

/// A session of the caller's own orchestrator. Those of others and those that are not there have one answer.
async fn parent(tx: &Tx, account: &AccountId, session: &str, owner: &Owner) -> Result<SessionId, ApiError> {
    let found = match session.trim().parse() {
        Ok(session) => session_of(tx, account, &session).await?,
        Err(_) => None,
    };
    let key = found.as_ref().and_then(|found| SessionKey::parse(&found.key).ok());
    let is_own = key.is_some_and(|key| owner.user().is_some() && key.of.orchestrator() == Some(owner));
    let found = found.filter(|_| is_own).map(|found| SessionId(found.id));
    let what = "name a session of your own orchestrator, by its id or its key";
    found.ok_or_else(|| invalid_field("parent_session_id", what).into())
}

fn task_taken(task: &TaskId) -> Problem {
    let detail =
        format!("task {task} has ended, is the coordinator's chat, or is on the board of somebody else's orchestrator");
    Problem::conflict("task_not_open", detail)
}
