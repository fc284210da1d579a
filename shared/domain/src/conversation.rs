//! A conversation: a session without its generation.

use crate::{
    AccountId, AgentId, BranchId, Generation, Owner, SessionKey, SessionKind, SessionOf, SessionScope, TaskId, UserId,
};

/// The part of a session's name that all its generations share.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conversation {
    pub account: AccountId,
    pub agent: AgentId,
    pub of: ConversationOf,
}

/// What an agent's conversation is about.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ConversationOf {
    /// By its key.
    Task(TaskId),
    /// The agent's work without a task.
    Agent,
    /// A branch, which has one session.
    Branch(BranchId),
    /// A person's orchestrator, or the account's. Its agent is the account's hidden one.
    Orchestrator(Owner),
    /// A person's orchestrator, as it answers another person: of the same agent.
    Guest { owner: UserId, guest: UserId },
}

impl Conversation {
    /// With scope `agent`, all of an agent's work is one conversation; the notification keeps its task.
    pub fn of(account: &AccountId, scope: SessionScope, task: Option<&TaskId>, agent: AgentId) -> Conversation {
        let of = match (scope, task) {
            (SessionScope::Task, Some(task)) => ConversationOf::Task(task.key()),
            (SessionScope::Task, None) | (SessionScope::Agent, _) => ConversationOf::Agent,
        };
        Conversation {
            account: account.clone(),
            agent,
            of,
        }
    }

    pub fn of_branch(account: &AccountId, branch: BranchId, agent: AgentId) -> Conversation {
        Conversation {
            account: account.clone(),
            agent,
            of: ConversationOf::Branch(branch),
        }
    }

    pub fn of_orchestrator(account: &AccountId, owner: Owner, agent: AgentId) -> Conversation {
        Conversation {
            account: account.clone(),
            agent,
            of: ConversationOf::Orchestrator(owner),
        }
    }

    pub fn of_guest(account: &AccountId, (owner, guest): (UserId, UserId), agent: AgentId) -> Conversation {
        Conversation {
            account: account.clone(),
            agent,
            of: ConversationOf::Guest { owner, guest },
        }
    }

    /// Of a session and its agent. None: a replay's, or a key that cannot be read.
    pub fn of_session(key: &str, agent: AgentId) -> Option<Conversation> {
        let key = SessionKey::parse(key).ok()?;
        let (of, named) = match key.of {
            SessionOf::Task { task, agent } => (ConversationOf::Task(task.key()), agent),
            SessionOf::Agent(agent) => (ConversationOf::Agent, agent),
            SessionOf::Branch { branch, agent } => (ConversationOf::Branch(branch), agent),
            SessionOf::Orchestrator(owner) => (ConversationOf::Orchestrator(owner), agent),
            SessionOf::Guest { owner, guest } => (ConversationOf::Guest { owner, guest }, agent),
            SessionOf::Replay(_) => return None,
        };
        let account = key.account;
        (named == agent).then_some(Conversation { account, agent, of })
    }

    /// The key of its task.
    pub fn task(&self) -> Option<&TaskId> {
        match &self.of {
            ConversationOf::Task(task) => Some(task),
            ConversationOf::Agent
            | ConversationOf::Branch(_)
            | ConversationOf::Orchestrator(_)
            | ConversationOf::Guest { .. } => None,
        }
    }

    pub fn branch(&self) -> Option<BranchId> {
        match &self.of {
            ConversationOf::Branch(branch) => Some(*branch),
            ConversationOf::Task(_)
            | ConversationOf::Agent
            | ConversationOf::Orchestrator(_)
            | ConversationOf::Guest { .. } => None,
        }
    }

    pub fn orchestrator(&self) -> Option<&Owner> {
        match &self.of {
            ConversationOf::Orchestrator(owner) => Some(owner),
            ConversationOf::Task(_)
            | ConversationOf::Agent
            | ConversationOf::Branch(_)
            | ConversationOf::Guest { .. } => None,
        }
    }

    /// The person whose own it is.
    pub fn person(&self) -> Option<&UserId> {
        match &self.of {
            ConversationOf::Orchestrator(owner) => owner.user(),
            ConversationOf::Guest { owner, .. } => Some(owner),
            ConversationOf::Task(_) | ConversationOf::Agent | ConversationOf::Branch(_) => None,
        }
    }

    /// Whom it answers for another person.
    pub fn guest(&self) -> Option<&UserId> {
        match &self.of {
            ConversationOf::Guest { guest, .. } => Some(guest),
            ConversationOf::Task(_)
            | ConversationOf::Agent
            | ConversationOf::Branch(_)
            | ConversationOf::Orchestrator(_) => None,
        }
    }

    pub fn kind(&self) -> SessionKind {
        match &self.of {
            ConversationOf::Task(_) => SessionKind::Task,
            ConversationOf::Agent => SessionKind::System,
            ConversationOf::Branch(_) => SessionKind::Branch,
            ConversationOf::Orchestrator(_) => SessionKind::Orchestrator,
            ConversationOf::Guest { .. } => SessionKind::Guest,
        }
    }

    /// Ids, never slugs: renaming an agent changes no key (S11).
    pub fn key(&self, generation: Generation) -> SessionKey {
        let agent = self.agent;
        let of = match self.of.clone() {
            ConversationOf::Task(task) => SessionOf::Task { task, agent },
            ConversationOf::Agent => SessionOf::Agent(agent),
            ConversationOf::Branch(branch) => SessionOf::Branch { branch, agent },
            ConversationOf::Orchestrator(owner) => SessionOf::Orchestrator(owner),
            ConversationOf::Guest { owner, guest } => SessionOf::Guest { owner, guest },
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
        let of_ann = Owner::User(UserId::parse("ann").unwrap());
        for (owner, expected) in [
            (of_ann, "orchestrator:acme:ann:v2"),
            (Owner::Account, "orchestrator:org:acme:v2"),
        ] {
            let conversation = Conversation::of_orchestrator(&account, owner, agent);
            assert_eq!(conversation.key(Generation(2)).to_string(), expected);
            assert_eq!(conversation.kind(), SessionKind::Orchestrator);
        }
        let [ann, bob] = ["ann", "bob"].map(|user| UserId::parse(user).unwrap());
        let guest = Conversation::of_guest(&account, (ann, bob), agent);
        assert_eq!(
            guest.key(Generation(2)).to_string(),
            "orchestrator:acme:ann:guest:bob:v2"
        );
        assert_eq!(guest.kind(), SessionKind::Guest);
    }

    #[test]
    fn a_conversation_is_known_by_its_session() {
        let agent = AgentId::parse(AGENT).unwrap();
        for text in [
            format!("task:proj-7:agent:{AGENT}:acme:v2"),
            format!("system:agent:{AGENT}:acme:v1"),
            format!("branch:{AGENT}:agent:{AGENT}:acme:v1"),
            "orchestrator:acme:ann:v3".to_owned(),
            "orchestrator:org:acme:v1".to_owned(),
            "orchestrator:acme:ann:guest:bob:v2".to_owned(),
        ] {
            let generation = SessionKey::parse(&text).unwrap().generation;
            let of = Conversation::of_session(&text, agent);
            assert_eq!(of.map(|of| of.key(generation).to_string()), Some(text));
        }
        let another = AgentId(uuid::Uuid::nil());
        assert_eq!(
            Conversation::of_session(&format!("system:agent:{AGENT}:acme:v1"), another),
            None
        );
        assert_eq!(
            Conversation::of_session(&format!("replay:{AGENT}:acme:v1"), agent),
            None
        );
    }

    #[test]
    fn spellings_of_a_task_are_one_conversation() {
        assert_eq!(
            conversation(SessionScope::Task, Some("PROJ-7")),
            conversation(SessionScope::Task, Some("proj-7"))
        );
    }
}
