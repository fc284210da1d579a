//! The questions of a batch, and the facts that answer them. Facts are grouped by account, so that no decision can read
//! another account's facts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contracts::{content::ContentHash, notification::Recipients};
use domain::{
    AccountId, AgentId, AgentRef, AgentSlug, MessageId, NotificationId, NotificationState, Owner, SessionOf,
    SessionScope, TaskId, UserId,
};

use super::{decide, received::Received};

/// The keys to look up, all at once. Sets, since a batch repeats the same names.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Questions {
    pub accounts: BTreeSet<AccountId>,
    pub agents: BTreeSet<(AccountId, AgentId)>,
    pub slugs: BTreeSet<(AccountId, AgentSlug)>,
    /// By their keys.
    pub tasks: BTreeSet<(AccountId, TaskId)>,
    /// Tasks whose assignees are needed.
    pub assigned: BTreeSet<(AccountId, TaskId)>,
    pub messages: BTreeSet<(AccountId, MessageId)>,
    pub notifications: BTreeSet<(AccountId, NotificationId)>,
    /// Owners of orchestrators.
    pub owners: BTreeSet<(AccountId, Owner)>,
    /// Owners of orchestrators, with the persons whom they are to answer.
    pub guests: BTreeSet<(AccountId, Guest)>,
}

/// An owner of an orchestrator, and the person whom it is to answer.
pub type Guest = (UserId, UserId);

impl Questions {
    pub fn about(batch: &[Received]) -> Questions {
        let mut questions = Questions::default();
        for received in batch {
            questions.add(received);
        }
        questions
    }

    fn add(&mut self, received: &Received) {
        // Without an account there is nothing to look up.
        let Some(account) = &received.account else { return };
        self.accounts.insert(account.clone());
        self.notifications.insert((account.clone(), received.id.clone()));
        let task = received.task.as_ref().map(|task| (account.clone(), task.key()));
        self.tasks.extend(task.clone());
        let Ok(notification) = &received.content else { return };
        if let Some(message) = notification.message_id {
            self.messages.insert((account.clone(), message));
        }
        match &notification.recipients {
            Recipients::One(agent) => self.agent(account, agent),
            Recipients::Many(agents) => agents.iter().for_each(|agent| self.agent(account, agent)),
            Recipients::Assignees => self.assigned.extend(task),
            Recipients::Session(address) => match address.within(account) {
                Some(SessionOf::Task { agent, .. } | SessionOf::Agent(agent)) => {
                    self.agents.insert((account.clone(), agent));
                }
                Some(SessionOf::Orchestrator(owner)) => drop(self.owners.insert((account.clone(), owner))),
                Some(SessionOf::Guest { owner, guest }) => {
                    self.guests.insert((account.clone(), (owner, guest)));
                }
                Some(SessionOf::Branch { .. } | SessionOf::Replay(_)) | None => {}
            },
        }
    }

    fn agent(&mut self, account: &AccountId, agent: &AgentRef) {
        match agent {
            AgentRef::Id(id) => drop(self.agents.insert((account.clone(), *id))),
            AgentRef::Slug(slug) => drop(self.slugs.insert((account.clone(), slug.clone()))),
        }
    }

    /// Looks up the parts of fanned-out notifications. Their ids are known only when their recipients are.
    pub fn about_parts(batch: &[Received], facts: &BatchFacts) -> Questions {
        let parts = batch
            .iter()
            .filter_map(|received| Some((received.account.as_ref()?, decide::part_ids(received, facts))))
            .flat_map(|(account, ids)| ids.into_iter().map(|id| (account.clone(), id)));
        Questions {
            notifications: parts.collect(),
            ..Questions::default()
        }
    }
}

/// The rows of the database, and the decisions of this batch so far.
#[derive(Clone, Default, Debug)]
pub struct BatchFacts {
    accounts: HashMap<AccountId, AccountFacts>,
}

#[derive(Clone, Debug)]
pub struct AccountFacts {
    pub session_scope: SessionScope,
    pub auto_create_tasks: bool,
    agents: HashMap<AgentRef, AgentId>,
    /// The task's key, and the id as its client spelled it.
    tasks: HashMap<TaskId, TaskId>,
    assignees: HashMap<TaskId, Vec<AgentId>>,
    /// Assignees by the key of the coordinator's chat. Empty where the chat has no assignee.
    coordinators: HashMap<TaskId, Vec<AgentId>>,
    messages: HashMap<MessageId, TaskId>,
    notifications: BTreeMap<NotificationId, Known>,
    /// The agents that run the orchestrators of these owners.
    orchestrators: HashMap<Owner, AgentId>,
    /// The agents that answer these guests.
    guests: HashMap<Guest, AgentId>,
}

/// A notification that is stored, or that this batch will store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub hash: ContentHash,
    /// Of its text since it was edited; its dead letter has that text.
    pub edited: Option<ContentHash>,
    /// None: it was refused before an agent was chosen.
    pub agent: Option<AgentId>,
    pub state: NotificationState,
}

impl Known {
    /// Whether this is the content that was published, or the edited one.
    pub fn says(&self, hash: ContentHash) -> bool {
        self.hash == hash || self.edited == Some(hash)
    }
}

/// One fact.
#[derive(Clone, Debug)]
pub enum Fact {
    Account {
        session_scope: SessionScope,
        auto_create_tasks: bool,
    },
    Agent(AgentRef, AgentId),
    Task(TaskId),
    /// By the task's key.
    Assignee(TaskId, AgentId),
    /// By the key of the coordinator's chat (S6).
    Coordinator(TaskId, AgentId),
    /// A message and the key of its task.
    Message(MessageId, TaskId),
    Notification(NotificationId, Known),
    /// A member's orchestrator, or the account's if it is enabled.
    Orchestrator(Owner, AgentId),
    /// A member's orchestrator that others may ask, for another member.
    Guest(Guest, AgentId),
}

impl BatchFacts {
    /// Adds a fact. An account is added before its own facts; facts of an unknown account are ignored.
    pub fn add(&mut self, account: &AccountId, fact: Fact) {
        if let Fact::Account {
            session_scope,
            auto_create_tasks,
        } = fact
        {
            let facts = AccountFacts {
                session_scope,
                auto_create_tasks,
                agents: HashMap::new(),
                tasks: HashMap::new(),
                assignees: HashMap::new(),
                coordinators: HashMap::new(),
                messages: HashMap::new(),
                notifications: BTreeMap::new(),
                orchestrators: HashMap::new(),
                guests: HashMap::new(),
            };
            self.accounts.insert(account.clone(), facts);
        } else if let Some(facts) = self.accounts.get_mut(account) {
            facts.add(fact);
        }
    }

    pub fn account(&self, account: &AccountId) -> Option<&AccountFacts> {
        self.accounts.get(account)
    }
}

impl AccountFacts {
    fn add(&mut self, fact: Fact) {
        match fact {
            Fact::Account { .. } => unreachable!("the account was added before its facts"),
            Fact::Agent(agent, id) => drop(self.agents.insert(agent, id)),
            Fact::Task(task) => drop(self.tasks.insert(task.key(), task)),
            Fact::Assignee(task, agent) => self.assignees.entry(task).or_default().push(agent),
            Fact::Coordinator(task, agent) => self.coordinators.entry(task).or_default().push(agent),
            Fact::Message(message, task) => drop(self.messages.insert(message, task)),
            Fact::Notification(id, known) => drop(self.notifications.insert(id, known)),
            Fact::Orchestrator(owner, agent) => drop(self.orchestrators.insert(owner, agent)),
            Fact::Guest(guest, agent) => drop(self.guests.insert(guest, agent)),
        }
    }

    /// The agent, unless it was removed.
    pub fn agent(&self, agent: &AgentRef) -> Option<AgentId> {
        self.agents.get(agent).copied()
    }

    /// The task as its client spelled it.
    pub fn task(&self, task: &TaskId) -> Option<&TaskId> {
        self.tasks.get(&task.key())
    }

    /// Agents that were not removed, in the order of their ids.
    pub fn assignees(&self, task: &TaskId) -> Vec<AgentId> {
        let mut agents = self.assignees.get(&task.key()).cloned().unwrap_or_default();
        agents.sort_unstable();
        agents
    }

    /// Whether a notification of this task may reach the agent. In the coordinator's chat, only its coordinators may be
    /// reached.
    pub fn may_reach(&self, task: &TaskId, agent: AgentId) -> bool {
        self.coordinators
            .get(&task.key())
            .is_none_or(|coordinators| coordinators.contains(&agent))
    }

    /// The key of the task whose thread holds the message.
    pub fn message_task(&self, message: MessageId) -> Option<&TaskId> {
        self.messages.get(&message)
    }

    pub fn orchestrator(&self, owner: &Owner) -> Option<AgentId> {
        self.orchestrators.get(owner).copied()
    }

    pub fn guest(&self, guest: &Guest) -> Option<AgentId> {
        self.guests.get(guest).copied()
    }

    pub fn notification(&self, id: &NotificationId) -> Option<&Known> {
        self.notifications.get(id)
    }
}
