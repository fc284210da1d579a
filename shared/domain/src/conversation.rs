//! A conversation: a session without its generation.

use crate::{AccountId, AgentId, Generation, SessionKey, SessionKind, SessionOf, SessionScope, TaskId};

/// The part of a session's name that all its generations share. Ordered, so that locks are taken in one order.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conversation {
    pub account: AccountId,
    /// The key of the task; none: the agent's work without a task.
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
        let agent = self.agent;
        let of = self
            .task
            .clone()
            .map_or(SessionOf::Agent(agent), |task| SessionOf::Task { task, agent });
        SessionKey {
            of,
            account: self.account.clone(),
            generation,
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
