//! A session of an orchestrator's own for a piece of work (O7): its task, on the orchestrator's board, the task's agent, and the session.
//! Its first item is the caller's: a notification, which the resolver places.

use domain::{AccountId, Actor, AgentId, Conversation, Owner, PersonaId, SessionId, SessionScope, TaskId, TaskStatus};
use sea_orm::FromQueryResult;

use super::{NewTask, task_create};
use crate::{Setting, StorageError, Tx, outbox::Owned, session::session_ensure::session_ensure};

#[derive(Clone, Debug)]
pub struct NewChild<'a> {
    pub account: &'a AccountId,
    pub owner: &'a Owner,
    pub task: &'a TaskId,
    /// Of a task that is made. None: the task is there, and the caller holds its row.
    pub title: Option<&'a str>,
    /// Not removed, and held by the caller.
    pub agent: AgentId,
    /// The account's. With `agent`, the agent's one session gets the work, and nothing is opened here.
    pub scope: SessionScope,
    pub persona: Option<ChildPersona>,
    /// The orchestrator's session that gives the work away. A session that is open keeps its own.
    pub parent: Option<SessionId>,
    /// Whether a task that is on no board comes onto the owner's. The coordinator's never does.
    pub adopts: bool,
    /// A new task begins with a plan that somebody approves.
    pub is_planned: bool,
    pub by: &'a Actor,
}

/// A persona that is shared, or of whoever names it.
#[derive(Clone, Debug)]
pub struct ChildPersona {
    pub id: PersonaId,
    /// An author's id. None: the account's orchestrator.
    pub by: Option<String>,
    /// The orchestrator chose it, and its person did not name it.
    pub is_inferred: bool,
}

#[derive(Debug)]
pub struct OpenedChild {
    /// None: the agent has one session for all of its work.
    pub session: Option<ChildSession>,
    pub messages: Vec<Owned>,
}

#[derive(Debug)]
pub struct ChildSession {
    pub id: SessionId,
    pub key: String,
    /// It was open.
    pub is_reused: bool,
}

/// What a new child depends on in its account.
#[derive(Clone, Copy, Debug, FromQueryResult)]
pub struct ChildFacts {
    pub session_scope: SessionScope,
    /// The agent of work for which none is named: the account's, or the only one.
    pub default_agent: Option<AgentId>,
}

/// Relies on primary keys and agent_slug.
pub const CHILD_FACTS: &str = "
    select a.session_scope,
           coalesce(
               (select g.id from agent g
                where g.account_id = a.id and g.id = a.default_agent and coalesce(g.removed_at, 'infinity') = 'infinity'),
               (select (array_agg(g.id))[1] from (
                    select g.id from agent g where g.account_id = a.id and g.removed_at is null order by g.slug limit 2) g
                having count(*) = 1)) as default_agent
    from account a where a.id = $1";

pub async fn child_facts(tx: &Tx, account: &AccountId) -> Result<ChildFacts, StorageError> {
    const ATTEMPT: &str = "read what a child depends on";
    let found = tx.one(ATTEMPT, CHILD_FACTS, [account.into()]).await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no account"))
}

/// A task that has a persona keeps it.
const CHILD_TASK: &str = "
    update task set board = $3, persona_by = case when persona_id is null then $5 else persona_by end,
        persona_from = case when persona_id is null then $6 else persona_from end, persona_id = coalesce(persona_id, $4)
    where account_id = $1 and id = $2 and (board = $3 or board is null and $7) and status not in ('done', 'cancelled', 'archived')
      and not exists (select from account a where a.id = $1 and a.coordinator_task = $2)";

const CHILD_ASSIGN: &str = "
    insert into task_assignee (account_id, task_id, agent_id) values ($1, $2, $3) on conflict do nothing";

/// None: the task has ended, is on another board or the coordinator's, and nothing is written; or the agent was removed, where the caller
/// does not hold it, and the caller undoes its transaction.
pub async fn child_open(
    tx: &Tx,
    new: &NewChild<'_>,
    setting: &Setting<'_>,
) -> Result<Option<OpenedChild>, StorageError> {
    const ATTEMPT: &str = "open a child";
    let (account, task) = (new.account, new.task);
    let mut messages = Vec::new();
    if let Some(title) = new.title {
        let task = NewTask {
            account,
            task,
            title,
            description: "",
            status: TaskStatus::Assigned,
            is_planned: new.is_planned,
            by: new.by,
        };
        let made = task_create(tx, &task, setting).await?;
        messages.extend(made.ok_or_else(|| StorageError::unreadable(ATTEMPT, "the task's fresh id is used"))?);
    }
    let persona = new.persona.as_ref();
    let from = persona.map(|persona| if persona.is_inferred { "inferred" } else { "user" });
    let values = [
        account.into(),
        task.key().into(),
        new.owner.to_string().into(),
        persona.map(|persona| persona.id).into(),
        persona.and_then(|persona| persona.by.clone()).into(),
        from.into(),
        (new.adopts || new.title.is_some()).into(),
    ];
    if tx.execute(ATTEMPT, CHILD_TASK, values).await? == 0 {
        return Ok(None);
    }
    let values = [account.into(), task.key().into(), new.agent.into()];
    tx.execute("assign the agent of a child", CHILD_ASSIGN, values).await?;
    let conversation = Conversation::of(account, new.scope, Some(task), new.agent);
    if conversation.task().is_none() {
        return Ok(Some(OpenedChild {
            session: None,
            messages,
        }));
    }
    let Some((session, opened)) = session_ensure(tx, &conversation, new.parent, setting).await? else {
        return Ok(None);
    };
    let is_reused = opened.is_none();
    messages.extend(opened);
    let session = ChildSession {
        id: session.id,
        key: conversation.key(session.generation).to_string(),
        is_reused,
    };
    Ok(Some(OpenedChild {
        session: Some(session),
        messages,
    }))
}
