//! Which session a notification goes to: the active one, or the next generation. Pure. There is one resolver for every
//! kind of work (S1); the account's `session_scope` is a choice inside of it and not a second way (S14).

use contracts::notification::{Refusal, RefusalReason};
use domain::{AccountId, AgentId, Generation, SessionId, SessionKey, SessionKind, SessionScope, TaskId};
use sea_orm::FromQueryResult;

/// The conversation: what stays the same over its generations. Ordered, so that locks are taken in one order.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conversation {
    pub account: AccountId,
    /// The key of the task; none: the agent's work on nothing in particular.
    pub task: Option<TaskId>,
    pub agent: AgentId,
}

impl Conversation {
    /// With scope `agent`, all of an agent's work is one conversation; the notification keeps its task.
    pub fn of(account: &AccountId, scope: SessionScope, task: Option<&TaskId>, agent: AgentId) -> Conversation {
        Conversation {
            account: account.clone(),
            task: match scope {
                SessionScope::Task => task.map(TaskId::key),
                SessionScope::Agent => None,
            },
            agent,
        }
    }

    pub fn kind(&self) -> SessionKind {
        match self.task {
            Some(_) => SessionKind::Task,
            None => SessionKind::System,
        }
    }

    /// Ids, never slugs: renaming an agent changes no key (S11).
    pub fn key(&self, generation: Generation) -> SessionKey {
        match &self.task {
            Some(task) => SessionKey::Task {
                task: task.clone(),
                agent: self.agent,
                account: self.account.clone(),
                generation,
            },
            None => SessionKey::System {
                agent: self.agent,
                account: self.account.clone(),
                generation,
            },
        }
    }
}

/// An active session, locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromQueryResult)]
pub struct ActiveSession {
    pub id: SessionId,
    pub generation: Generation,
    /// Place of the newest item that was ever queued.
    pub queue_tail: i64,
    /// Nothing waits in it and nothing is being done: nobody will look at it unless somebody says so. Of any other, whoever
    /// sees to it finds under its lock what has come meanwhile.
    pub rests: bool,
}

/// What is known of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    Active(ActiveSession),
    /// None is active; the newest there was.
    Closed(Generation),
    Never,
    /// Its agent was removed since it was looked up.
    AgentRemoved,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolution {
    Reuse(ActiveSession),
    OpenNext(Generation),
    Refuse(Refusal),
}

pub fn resolve(found: Found) -> Resolution {
    match found {
        Found::Active(session) => Resolution::Reuse(session),
        Found::Closed(newest) => Resolution::OpenNext(newest.next()),
        Found::Never => Resolution::OpenNext(Generation::FIRST),
        Found::AgentRemoved => Resolution::Refuse(Refusal::new(
            RefusalReason::UnknownAgent,
            "the agent was removed just now",
        )),
    }
}

/// How a session came to be at hand, for logs and counters (S13).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Finding {
    Created,
    Reused,
    Reopened,
}

impl Finding {
    pub fn of_opened(generation: Generation) -> Finding {
        if generation == Generation::FIRST {
            Finding::Created
        } else {
            Finding::Reopened
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Reused => "reused",
            Self::Reopened => "reopened",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &str = "0190b5a8-0000-7000-8000-000000000001";

    fn conversation(scope: SessionScope, task: Option<&str>) -> Conversation {
        let task = task.map(|task| TaskId::parse(task).unwrap());
        let account = AccountId::parse("acme").unwrap();
        Conversation::of(&account, scope, task.as_ref(), AgentId::parse(AGENT).unwrap())
    }

    #[test]
    fn the_active_one_or_the_next() {
        let session = ActiveSession {
            id: SessionId(uuid::Uuid::nil()),
            generation: Generation(4),
            queue_tail: 7,
            rests: true,
        };
        let check = |found, expected| assert_eq!(resolve(found), expected);
        check(Found::Active(session), Resolution::Reuse(session));
        check(Found::Closed(Generation(4)), Resolution::OpenNext(Generation(5)));
        check(Found::Never, Resolution::OpenNext(Generation(1)));
        assert!(
            matches!(resolve(Found::AgentRemoved), Resolution::Refuse(refusal) if refusal.reason == RefusalReason::UnknownAgent)
        );
        assert_eq!(Finding::of_opened(Generation(1)), Finding::Created);
        assert_eq!(Finding::of_opened(Generation(2)), Finding::Reopened);
    }

    #[test]
    fn every_conversation_has_its_key() {
        let check = |scope, task, key: String| {
            let conversation = conversation(scope, task);
            assert_eq!(conversation.key(Generation(2)).to_string(), key);
        };
        check(
            SessionScope::Task,
            Some("PROJ-7"),
            format!("task:proj-7:agent:{AGENT}:acme:v2"),
        );
        check(SessionScope::Task, None, format!("system:agent:{AGENT}:acme:v2"));
        check(
            SessionScope::Agent,
            Some("PROJ-7"),
            format!("system:agent:{AGENT}:acme:v2"),
        );
        check(SessionScope::Agent, None, format!("system:agent:{AGENT}:acme:v2"));
    }

    #[test]
    fn spellings_of_a_task_are_one_conversation() {
        assert_eq!(
            conversation(SessionScope::Task, Some("PROJ-7")),
            conversation(SessionScope::Task, Some("proj-7"))
        );
    }
}
