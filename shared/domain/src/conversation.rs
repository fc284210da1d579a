//! A conversation: a session without its generation.

use crate::{AccountId, AgentId, BranchId, Generation, SessionKey, SessionKind, SessionOf, SessionScope, TaskId};

/// The part of a session's name that all its generations share. Ordered, so that locks are taken in one order.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conversation {
    pub account: AccountId,
    /// The key of the task; none: the agent's work without a task, or a branch.
    pub task: Option<TaskId>,
    pub agent: AgentId,
    /// The branch whose only session it is.
    pub branch: Option<BranchId>,
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
            branch: None,
        }
    }

    pub fn of_branch(account: &AccountId, branch: BranchId, agent: AgentId) -> Conversation {
        Conversation {
            account: account.clone(),
            task: None,
            agent,
            branch: Some(branch),
        }
    }

    /// Of a session's key. None: an orchestrator's, or a replay's.
    pub fn of_key(key: &SessionKey) -> Option<Conversation> {
        let (task, agent, branch) = match &key.of {
            SessionOf::Task { task, agent } => (Some(task.key()), *agent, None),
            SessionOf::Agent(agent) => (None, *agent, None),
            SessionOf::Branch { branch, agent } => (None, *agent, Some(*branch)),
            SessionOf::Replay(_) | SessionOf::User(_) | SessionOf::Account => return None,
        };
        Some(Conversation {
            account: key.account.clone(),
            task,
            agent,
            branch,
        })
    }

    pub fn kind(&self) -> SessionKind {
        match (self.branch, &self.task) {
            (Some(_), _) => SessionKind::Branch,
            (None, Some(_)) => SessionKind::Task,
            (None, None) => SessionKind::System,
        }
    }

    /// Ids, never slugs: renaming an agent changes no key (S11).
    pub fn key(&self, generation: Generation) -> SessionKey {
        let agent = self.agent;
        let of = match (self.branch, &self.task) {
            (Some(branch), _) => SessionOf::Branch { branch, agent },
            (None, Some(task)) => SessionOf::Task {
                task: task.clone(),
                agent,
            },
            (None, None) => SessionOf::Agent(agent),
        };
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
        let (account, agent) = (AccountId::parse("acme").unwrap(), AgentId::parse(AGENT).unwrap());
        let branch = Conversation::of_branch(&account, BranchId::parse(AGENT).unwrap(), agent);
        let key = branch.key(Generation(1)).to_string();
        assert_eq!(key, format!("branch:{AGENT}:agent:{AGENT}:acme:v1"));
        assert_eq!(branch.kind(), SessionKind::Branch);
    }

    #[test]
    fn a_conversation_is_known_by_its_key() {
        let of_key = |text: &str| Conversation::of_key(&SessionKey::parse(text).unwrap());
        for text in [
            format!("task:proj-7:agent:{AGENT}:acme:v2"),
            format!("system:agent:{AGENT}:acme:v1"),
            format!("branch:{AGENT}:agent:{AGENT}:acme:v1"),
        ] {
            let generation = SessionKey::parse(&text).unwrap().generation;
            assert_eq!(of_key(&text).map(|of| of.key(generation).to_string()), Some(text));
        }
        assert_eq!(of_key("orchestrator:org:acme:v1"), None);
    }

    #[test]
    fn spellings_of_a_task_are_one_conversation() {
        assert_eq!(
            conversation(SessionScope::Task, Some("PROJ-7")),
            conversation(SessionScope::Task, Some("proj-7"))
        );
    }
}
