//! What tasks wait for, and an orchestrator's children, as `storage::lifecycle::{dependencies, task_status, child_open}` write them under
//! the locks of the tasks.

use contracts::notification::NotificationMessage;
use delivery::store::SessionName;
use domain::{
    AccountId, Actor, AgentId, Conversation, Generation, Owner, SessionId, TaskId, TaskStatus, TurnId, board::ring,
};
use storage::lifecycle::child_mail::is_told;
use tool_gateway::decisions::{CallFacts, CallRequest, Refusal, ToolAnswer};
use uuid::Uuid;

use super::{Database, Task, calls::Done, intake::LIMITS, mail::told, outbox::Message, questions::own_message};
use crate::simulation::bugs::Bug;

/// As `children_open_max`: fewer, so that it is reached.
const CHILDREN_MAX: usize = 2;

/// The types of items that tell of it.
pub(crate) const UNBLOCKED: &str = "task_unblocked";
const ENDED: &str = "dependency_ended";
const ADDED: &str = "dependency_added";

/// Of a task that waits for another one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    pub(crate) satisfied: bool,
    ended: bool,
}

/// Who moves: an agent in its turn, with the turn's hops.
type Mover = (Option<AgentId>, u16);

impl Database {
    pub(super) fn mover(&self, account: &AccountId, turn: Option<TurnId>) -> Mover {
        let turn = turn.and_then(|turn| self.turns.get(&(account.clone(), turn)));
        turn.map_or((None, 0), |turn| {
            (Some(turn.agent), u16::try_from(turn.hops).unwrap_or_default())
        })
    }

    /// `BLOCKERS_OPEN`.
    pub(crate) fn waits(&self, account: &AccountId, task: &TaskId) -> bool {
        let mut edges = self.edges.iter();
        edges.any(|((owner, from, _), edge)| owner == account && *from == task.key() && !edge.satisfied)
    }

    /// `status_freeing`.
    pub(super) fn status_write(
        &mut self,
        (account, task): (&AccountId, &TaskId),
        to: TaskStatus,
        by: Mover,
        bug: Option<Bug>,
    ) -> Vec<Message> {
        let mut written = Vec::new();
        let row = self.tasks.get_mut(&(account.clone(), task.key())).expect("locked");
        if std::mem::replace(&mut row.status, to) == to {
            return written;
        }
        if let Some(board) = row.board.clone().filter(|_| is_told(to))
            && bug != Some(Bug::ChildUntold)
        {
            written.extend(self.orchestrator_told(account, (&board, task), by));
        }
        let is_done = to == TaskStatus::Done;
        if !is_done && !to.is_dead_end() {
            return written;
        }
        let mut waiting = Vec::new();
        for ((owner, from, blocker), edge) in &mut self.edges {
            let is_open = !edge.satisfied && (is_done || !edge.ended) || is_done && bug == Some(Bug::FreedTwice);
            if owner == account && *blocker == task.key() && is_open {
                (edge.satisfied, edge.ended) = (is_done, !is_done);
                waiting.push(from.clone());
            }
        }
        match is_done {
            true => written.extend(self.free(account, &waiting, by, bug)),
            false => {
                waiting.retain(|task| !self.tasks[&(account.clone(), task.clone())].status.is_terminal());
                let told = |task: &TaskId| self.dependent_told(account, task, (ENDED, by));
                written.extend(waiting.iter().flat_map(told));
            }
        }
        written
    }

    /// `free`.
    fn free(&mut self, account: &AccountId, waiting: &[TaskId], by: Mover, bug: Option<Bug>) -> Vec<Message> {
        let mut written = Vec::new();
        for task in waiting {
            let name = (account.clone(), task.clone());
            let is_blocked = self.tasks[&name].status == TaskStatus::Blocked || bug == Some(Bug::FreedTwice);
            if !is_blocked || self.waits(account, task) || self.is_held(account, task) || bug == Some(Bug::UnblockLost)
            {
                continue;
            }
            self.tasks.get_mut(&name).expect("locked").status = TaskStatus::Pending;
            let hops = by.1.saturating_sub(1);
            written.extend(self.dependent_told(account, task, (UNBLOCKED, (by.0, hops))));
        }
        written
    }

    /// Of `DEPENDENTS`: a question or a timer moves it on.
    pub(crate) fn is_held(&self, account: &AccountId, task: &TaskId) -> bool {
        let questions = self.questions.iter().filter(|(_, row)| row.state.is_open());
        let timers = self
            .timers
            .iter()
            .filter(|(_, row)| row.state == domain::TimerState::Waiting);
        let questions = questions.map(|((owner, _), row)| (owner, &row.task));
        let timers = timers.map(|((owner, _), row)| (owner, &row.task));
        questions
            .chain(timers)
            .any(|(owner, of)| owner == account && of.as_ref() == Some(task))
    }

    /// `told`: agents, or whose board it is on. Nobody here is given a task that is not its own.
    fn dependent_told(&mut self, account: &AccountId, task: &TaskId, (kind, by): (&str, Mover)) -> Vec<Message> {
        let row = self.tasks[&(account.clone(), task.clone())].clone();
        if let Some(board) = row.board.filter(|_| kind == ENDED || row.assignees.is_empty()) {
            return Vec::from_iter(self.orchestrator_told(account, (&board, task), by));
        }
        let seed = self.fresh_id();
        let item = |agent: &AgentId| {
            let id = Uuid::new_v5(&seed, agent.uuid().as_bytes());
            let message = NotificationMessage {
                id: Some(id.into()),
                agent: Some(agent.to_string()),
                sender: Some(Actor::system()),
                ..own_message(kind, [("reopen", false.into())])
            };
            told(account, Some(task), &message, by.1)
        };
        row.assignees.iter().map(item).collect()
    }

    /// `dependencies_set`, by a person. None: refused.
    pub(crate) fn dependencies_set(
        &mut self,
        account: &AccountId,
        (task, blockers): (&TaskId, &[TaskId]),
        bug: Option<Bug>,
    ) -> Option<Vec<Message>> {
        let (by, key) = ((None, 0), task.key());
        let from = self.tasks.get(&(account.clone(), key.clone()))?.status;
        let statuses: Option<Vec<TaskStatus>> = blockers
            .iter()
            .map(|blocker| Some(self.tasks.get(&(account.clone(), blocker.key()))?.status))
            .collect();
        let statuses = statuses?;
        let mut edges = self.edges.clone();
        edges.retain(|(owner, from, to), _| owner != account || *from != key || blockers.contains(to));
        let left = edges.len();
        for (blocker, status) in blockers.iter().zip(statuses) {
            let edge = Edge {
                satisfied: status == TaskStatus::Done,
                ended: status.is_dead_end(),
            };
            edges
                .entry((account.clone(), key.clone(), blocker.key()))
                .or_insert(edge);
        }
        let is_more = edges.len() > left;
        if !is_more && left == self.edges.len() {
            return Some(Vec::new());
        }
        let open: Vec<(TaskId, TaskId)> = edges
            .iter()
            .filter(|((owner, ..), edge)| owner == account && !edge.satisfied)
            .map(|((_, from, to), _)| (from.clone(), to.clone()))
            .collect();
        let is_ring = ring(&key, &open).is_some() && bug != Some(Bug::RingUnseen);
        if is_ring || blockers.contains(&key) {
            return None;
        }
        self.edges = edges;
        self.version += 1;
        let waits = self.waits(account, &key);
        Some(match from {
            from if waits && from.is_before_work() => self.status_write((account, &key), TaskStatus::Blocked, by, bug),
            from if waits && is_more && !from.is_terminal() && from != TaskStatus::Blocked => {
                self.dependent_told(account, &key, (ADDED, by))
            }
            TaskStatus::Blocked if !waits => self.free(account, &[key], by, bug),
            _ => Vec::new(),
        })
    }

    /// `tools/create_session.rs`, `child_open` and `session_ensure`: the argument is the agent.
    pub(super) fn run_create_session(&mut self, asked: &CallRequest, facts: &CallFacts) -> Result<Done, ToolAnswer> {
        let failed = |code| Err(ToolAnswer::failed(code, "", ""));
        let account = &asked.account;
        let Some(owner) = facts.owner() else {
            return failed("not_offered");
        };
        if facts.hops() >= LIMITS.hops_max {
            return failed("hop_limit");
        }
        let is_open = |task: &&Task| task.board.as_ref() == Some(&owner) && !task.status.is_terminal() && task.is_child;
        let open = self
            .tasks
            .iter()
            .filter(|((of, _), _)| of == account)
            .map(|(_, task)| task);
        if open.filter(is_open).count() >= CHILDREN_MAX {
            return failed("child_limit");
        }
        let agent = AgentId::parse(&asked.arguments).expect("agents here name one");
        let row = self.agents.get(&(account.clone(), agent));
        if row.is_none_or(|row| row.removed) {
            return failed("no_agent");
        }
        let task = Uuid::new_v5(&asked.id, b"task").to_string();
        let task = TaskId::parse(&task).expect("a UUID is an id");
        let row = Task {
            status: TaskStatus::Assigned,
            assignees: vec![agent],
            board: Some(owner),
            is_child: true,
        };
        self.tasks.insert((account.clone(), task.key()), row);
        let conversation = Conversation::of(account, self.accounts[account].scope, Some(&task), agent);
        if conversation.task().is_some() && self.active(&conversation).is_none() {
            let id = SessionId(self.fresh_id());
            self.session_open(conversation, id, Generation::FIRST, 0);
        }
        Ok(Self::asks(asked, facts, (Some(&task), agent)))
    }

    /// `tools/update_task.rs`: the arguments are the task and its status.
    pub(super) fn run_update_task(
        &mut self,
        asked: &CallRequest,
        facts: &CallFacts,
        bug: Option<Bug>,
    ) -> Result<Done, ToolAnswer> {
        let (task, to) = asked.arguments.split_once(' ').expect("agents here say all");
        let task = TaskId::parse(task).expect("a task");
        let to = TaskStatus::parse(to).expect("a status");
        let place = self.tasks.get(&(asked.account.clone(), task.key()));
        let is_own = |place: &&Task| match (facts.owner(), facts.task()) {
            (Some(owner), _) => place.board == Some(owner),
            (None, Some(own)) => own.key() == task.key() || bug == Some(Bug::OthersTaskMoved),
            (None, None) => false,
        };
        match place.filter(is_own) {
            Some(_) => self.task_moved(asked, facts, (&task, to), bug),
            None => Err(Refusal::not_there(&task, facts).told()),
        }
    }

    /// Of the person or the account that an orchestrator, or its guest, works for.
    pub(crate) fn owner_of(&self, session: &SessionName) -> Option<Owner> {
        let conversation = &self.sessions[session].conversation;
        match conversation.orchestrator() {
            Some(owner) => Some(owner.clone()),
            None => conversation
                .guest()
                .and(conversation.person())
                .cloned()
                .map(Owner::User),
        }
    }
}
