//! The whole state of one run, and the scheduler: the seed picks one small step after another, until no step is left.

use contracts::tool::ToolRequested;
use domain::{AccountId, AgentId, BranchState, Owner, SessionScope, StopKind, StopThen, TaskId, TaskStatus, UserId};
use uuid::Uuid;

use super::{
    broker::Broker,
    bugs::Bug,
    database::{
        Account, Agent, Database, Millis, PartitionRow, Task,
        branches::{BranchesEnded, ENDED_BY},
        outbox::{Message, Service},
    },
    deeds::Deed,
    processes::{Act, Process},
    provider::Provider,
    random::Random,
    settings::{GATEWAY_ONLY, LEASE, MARGIN, OWN, PARTITIONS, Rates, Settings},
    trace::Trace,
    witness::Witness,
};

/// The members of each account.
pub(crate) const PERSONS: [&str; 2] = ["ann", "bob"];
/// The number of the hidden agent of an account.
const HIDDEN: u128 = 99;

fn agent(number: u128) -> AgentId {
    AgentId(Uuid::from_u128((0x0180_0000_0000_7000_8000 << 48) | number))
}

/// Steps without faults until the end. A run that needs more is stuck: the longest of some million needed a tenth.
const CALM_STEPS_MAX: u64 = 20_000;
/// The same in simulated time.
const CALM_TIME_MAX: Millis = 3 * 3_600_000;

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) rates: Rates,
    pub(crate) random: Random,
    pub(crate) database: Database,
    pub(crate) broker: Broker,
    pub(crate) provider: Provider,
    pub(crate) witness: Witness,
    pub(crate) trace: Trace,
    pub(crate) processes: Vec<Process>,
    pub(crate) deeds: Vec<Deed>,
    pub(crate) agents: Vec<(AccountId, AgentId)>,
    pub(crate) bug: Option<Bug>,
    pub(crate) counts: Counts,
    pub(crate) calm: bool,
    /// Tool requests that were sent, for late repetitions.
    pub(crate) requests: Vec<ToolRequested>,
}

/// Counters of a run, for its summary.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Counts {
    pub(crate) steps: u64,
    pub(crate) turns: u64,
    /// Those of the turns that began with the record of the last one.
    pub(crate) gone_on: u64,
    pub(crate) resumed: u64,
    /// Batches that were entered by routes.
    pub(crate) routed: u64,
    pub(crate) stale: u64,
    pub(crate) raced: u64,
    pub(crate) crashes: u64,
    pub(crate) leases_lost: u64,
    pub(crate) faults: u64,
    pub(crate) answers_lost: u64,
    /// Turns that ended on request.
    pub(crate) stopped: u64,
    /// Calls that were dropped on request.
    pub(crate) dropped: u64,
    /// Turns of several items.
    pub(crate) runs: u64,
    /// Times that a session was parked behind a stopped turn, and for a run that may still grow.
    pub(crate) parked: u64,
    pub(crate) collecting: u64,
    /// Sessions parked behind an open breaker.
    pub(crate) without_provider: u64,
    /// Gates that an item opened.
    pub(crate) opened: u64,
    /// Edits of queues, and those that came too late.
    pub(crate) edited: u64,
    pub(crate) refused: u64,
    /// Times that a session was parked behind a pause.
    pub(crate) paused: u64,
    /// Questions that a person ended, and attempts to end one that was over.
    pub(crate) answered: u64,
    pub(crate) too_late: u64,
    /// Calls that ran with a person's approval.
    pub(crate) approved: u64,
    /// Timers that have fired.
    pub(crate) fired: u64,
    /// Generations that ended by a reset and by a rule.
    pub(crate) reset: u64,
    pub(crate) rotated: u64,
    /// Branches that were made, that ended before their work was done, and items with results.
    pub(crate) spawned: u64,
    pub(crate) cut_short: u64,
    pub(crate) folded: u64,
    /// Replays that were made, and their calls that the record answered.
    pub(crate) replayed: u64,
    pub(crate) replay_calls: u64,
    /// Mail that was in a turn, was taken by one, was read by a person and has bounced; answers by code.
    pub(crate) mailed: u64,
    pub(crate) pulled: u64,
    pub(crate) read: u64,
    pub(crate) bounced: u64,
    pub(crate) replied: u64,
    /// Tasks that waited for nothing any more, rings that were refused, and children.
    pub(crate) freed: u64,
    pub(crate) rings: u64,
    pub(crate) children: u64,
}

/// Possible next steps.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Process(usize, Act),
    HandOut(usize, usize),
    Provider(usize),
    Deed(usize),
    Time,
}

/// The next event of a lease that was not renewed for a while.
#[derive(Clone, Copy, Debug)]
enum LeaseTurn {
    /// It was renewed in time.
    Renewed,
    /// Its holder was frozen when it ended, and does not know yet.
    Overslept,
    /// Its holder knows, before another process may take over.
    Lost,
}

/// The result of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Committed,
    /// It committed and its answer is lost.
    Unanswered,
    Failed,
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, in_words: bool) -> World {
        let mut random = Random::new(seed);
        let settings = Settings::new(&mut random);
        let mut world = World {
            rates: settings.rates,
            settings,
            random,
            database: Database::default(),
            broker: Broker::new(),
            provider: Provider::default(),
            witness: Witness::default(),
            trace: Trace::new(in_words),
            processes: Vec::new(),
            deeds: Vec::new(),
            agents: Vec::new(),
            bug,
            counts: Counts::default(),
            calm: false,
            requests: Vec::new(),
        };
        world.people();
        world.database.partitions = vec![PartitionRow::default(); PARTITIONS];
        for service in [
            Service::Resolver,
            Service::Delivery,
            Service::ToolGateway,
            Service::Orchestrator,
        ] {
            for _ in 0..world.settings.replicas {
                world.processes.push(Process::new(service, &world.settings));
            }
        }
        for p in 0..world.processes.len() {
            world.enter(p);
        }
        world.plan_deeds();
        world
    }

    fn people(&mut self) {
        for (account, scope) in [("acme", SessionScope::Task), ("blue", SessionScope::Agent)] {
            let account = AccountId::parse(account).expect("an account");
            let row = Account {
                scope,
                auto_create_tasks: self.random.chance(500),
                asks: self
                    .random
                    .chance(500)
                    .then(|| *self.random.pick(&["task_message", "task_status"])),
                hidden: agent(HIDDEN),
                mail_enabled: self.random.chance(800),
            };
            self.database.accounts.insert(account.clone(), row);
            let row = Agent {
                slug: agent(HIDDEN).to_string(),
                provider: OWN.to_owned(),
                removed: true,
            };
            self.database.agents.insert((account.clone(), agent(HIDDEN)), row);
            for user in PERSONS {
                let user = UserId::parse(user).expect("a person");
                self.database.members.insert((account.clone(), user), false);
            }
            let mut assignees = Vec::new();
            for (n, slug) in (1_u128..).zip(["ada", "ben"]) {
                // Agents of both accounts have the same ids where allowed, so that nothing can rely on an id alone.
                let agent = agent(n);
                let provider = if self.random.chance(400) { OWN } else { GATEWAY_ONLY };
                let row = Agent {
                    slug: slug.to_owned(),
                    provider: provider.to_owned(),
                    removed: false,
                };
                self.database.agents.insert((account.clone(), agent), row);
                self.agents.push((account.clone(), agent));
                assignees.push(agent);
            }
            let of_ann = || Some(Owner::User(UserId::parse(PERSONS[0]).expect("a person")));
            for (name, status, assignees, board) in [
                ("t-1", TaskStatus::InProgress, &*assignees, None),
                ("t-2", TaskStatus::InProgress, &*assignees, None),
                ("b-1", TaskStatus::Pending, &*assignees, of_ann()),
                ("b-2", TaskStatus::Assigned, &assignees[..1], of_ann()),
                ("b-3", TaskStatus::Pending, &[], of_ann()),
            ] {
                let row = Task {
                    status,
                    assignees: assignees.to_vec(),
                    board,
                    is_child: false,
                };
                self.database
                    .tasks
                    .insert((account.clone(), TaskId::parse(name).expect("a task")), row);
            }
        }
    }

    /// Runs to the end, or to the first violation.
    pub(crate) fn run(&mut self) {
        for _ in 0..self.settings.steps {
            if !self.step() || self.witness.broken.is_some() {
                break;
            }
            self.strike();
        }
        self.calm_down();
        self.release_all();
        let calm_since = self.database.now;
        let mut steps = 0;
        while self.witness.broken.is_none() && (self.step() || self.resume_all()) {
            steps += 1;
            if steps > CALM_STEPS_MAX || self.database.now - calm_since > CALM_TIME_MAX {
                let waiting = self.waiting();
                self.witness.breaks("stuck", || waiting);
            }
        }
        if self.witness.broken.is_none() {
            self.witness.look_at_the_end(&self.database, &self.broker.events);
            self.counts.freed = self.witness.freed();
        }
    }

    /// At the end, persons resume what waits behind stopped turns. `false`: nothing does.
    fn resume_all(&mut self) -> bool {
        let parked = self.database.parked();
        self.deeds.extend(parked.iter().cloned().map(Deed::Resume));
        !parked.is_empty()
    }

    /// Runs one step. `false`: none is left.
    fn step(&mut self) -> bool {
        let choices = self.choices();
        let next = self.next_moment();
        let Some(choice) = self.choose(&choices, next.is_some()) else {
            return false;
        };
        self.counts.steps += 1;
        match choice {
            Choice::Process(p, act) => self.act(p, act),
            Choice::HandOut(n, p) => self.hand_out(n, p),
            Choice::Provider(n) => self.provider_proceeds(n),
            Choice::Deed(n) => self.do_deed(n),
            Choice::Time => self.let_time_pass(next),
        }
        self.witness.look(&self.database);
        true
    }

    fn choose(&mut self, choices: &[Choice], may_wait: bool) -> Option<Choice> {
        if choices.is_empty() {
            return may_wait.then_some(Choice::Time);
        }
        if self.random.chance(60) {
            return Some(Choice::Time);
        }
        Some(*self.random.pick(choices))
    }

    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::with_capacity(32);
        let mut acts = Vec::with_capacity(16);
        for p in 0..self.processes.len() {
            acts.clear();
            self.acts(p, &mut acts);
            choices.extend(acts.iter().map(|act| Choice::Process(p, *act)));
        }
        if self.broker_is_up() {
            for (n, queued) in self.broker.queued.iter().enumerate() {
                if queued.not_before > self.database.now {
                    continue;
                }
                let reader = Broker::reader(&queued.message);
                let readers = (0..self.processes.len()).filter(|p| {
                    self.processes[*p].service == reader && self.processes[*p].is_running(self.database.now)
                });
                choices.extend(readers.map(|p| Choice::HandOut(n, p)));
            }
        }
        for (n, request) in self.provider.requests.iter().enumerate() {
            if !request.over {
                choices.push(Choice::Provider(n));
            }
        }
        choices.extend(
            (0..self.deeds.len().min(3))
                .filter(|n| self.can_do(*n))
                .map(Choice::Deed),
        );
        choices
    }

    /// The time of the next possible step.
    fn next_moment(&self) -> Option<Millis> {
        let now = self.database.now;
        let mut next: Option<Millis> = None;
        let mut at = |moment: Option<Millis>| {
            if let Some(moment) = moment.filter(|moment| *moment > now) {
                next = Some(next.map_or(moment, |next| next.min(moment)));
            }
        };
        at(self.broker.next_due());
        at((self.broker.down_until > now).then_some(self.broker.down_until));
        at(self.database.outbox_next_due());
        at(self.database.timers_next());
        at(self.database.mail_next());
        for row in self.database.sessions.values() {
            at(row
                .wake_at
                .filter(|_| row.active_turn.is_some() || (row.queued > 0 && row.closed.is_none())));
            let holder = row.lease_owner.and_then(|owner| self.database.replicas.get(&owner));
            at(holder.copied().filter(|_| !self.is_held(row.lease_owner)));
        }
        for row in &self.database.partitions {
            let holder = row.owner.and_then(|owner| self.database.replicas.get(&owner));
            at(holder.copied().filter(|_| !self.is_held(row.owner)));
        }
        let neglected = self
            .database
            .sessions
            .values()
            .any(|row| self.database.is_neglected(row));
        for process in &self.processes {
            process.moments(now, neglected, &mut at);
        }
        next
    }

    /// Of a process that keeps renewing its lease.
    fn is_held(&self, replica: Option<Uuid>) -> bool {
        self.processes
            .iter()
            .any(|process| process.renews() && process.incarnation.is_some_and(|one| Some(one.id) == replica))
    }

    fn let_time_pass(&mut self, next: Option<Millis>) {
        let now = self.database.now;
        let to = match next {
            Some(next) if self.random.chance(500) => next,
            _ if self.calm && next.is_none() => now + 1,
            _ => now + self.random.between(1, 50),
        };
        self.advance(to);
    }

    /// Leases are renewed in time if possible. A holder that cannot renew knows in time that it lost the lease; a frozen one
    /// notices later.
    pub(crate) fn advance(&mut self, to: Millis) {
        let now = self.database.now;
        while let Some((at, p, turn)) = self.next_turn_of_a_lease().filter(|(at, _, _)| *at <= to) {
            self.database.now = at.max(self.database.now);
            match turn {
                LeaseTurn::Renewed => self.processes[p].paused = false,
                LeaseTurn::Overslept => {
                    self.processes[p].paused = false;
                    self.processes[p].overslept = true;
                }
                LeaseTurn::Lost => self.lose_leases(p),
            }
        }
        self.database.now = to.max(now);
        let now = self.database.now;
        for process in self.processes.iter_mut().filter(|process| process.renews()) {
            if let Some(incarnation) = &mut process.incarnation {
                incarnation.ends = now + LEASE - MARGIN;
                self.database.replicas.insert(incarnation.id, now + LEASE);
            }
        }
    }

    /// Picks the next event of a lease that is not renewed.
    fn next_turn_of_a_lease(&self) -> Option<(Millis, usize, LeaseTurn)> {
        (0..self.processes.len())
            .filter_map(|p| {
                let process = &self.processes[p];
                let ends = process.incarnation.filter(|_| process.paused)?.ends;
                let (thaws, reaches) = (process.frozen_until, process.frozen_until.max(process.cut_off_until));
                Some(if ends > reaches {
                    (reaches, p, LeaseTurn::Renewed)
                } else if thaws > ends {
                    (thaws, p, LeaseTurn::Overslept)
                } else {
                    (ends, p, LeaseTurn::Lost)
                })
            })
            .min_by_key(|(at, p, _)| (*at, *p))
    }

    pub(crate) fn fate(&mut self, p: usize) -> Fate {
        if self.processes[p].cut_off_until > self.database.now || self.random.chance(self.rates.transaction_failed) {
            return Fate::Failed;
        }
        if self.random.chance(self.rates.answer_lost) {
            self.counts.answers_lost += 1;
            return Fate::Unanswered;
        }
        Fate::Committed
    }

    pub(crate) fn broker_is_up(&self) -> bool {
        self.broker.down_until <= self.database.now
    }

    /// `true`: the broker acknowledged it. A stored message may be unacknowledged.
    pub(crate) fn publish(&mut self, message: Message) -> bool {
        if !self.broker_is_up() {
            return false;
        }
        if self.random.chance(self.rates.publish_failed) {
            if self.random.chance(500) {
                self.store(message);
            }
            return false;
        }
        self.store(message);
        true
    }

    /// Whoever listens hears it, and the stream keeps it.
    fn store(&mut self, message: Message) {
        if let Message::SessionStopRequested(hint) = &message {
            self.hear((hint.account.clone(), hint.session_id));
        }
        self.broker.publish(message, self.database.now);
    }

    /// Branches ended in a transaction.
    pub(crate) fn branches_ended(&mut self, ended: &BranchesEnded) {
        let Some(account) = &ended.account else { return };
        self.note(
            "branches ended",
            [ended.branches.len() as u64, ended.items.len() as u64],
            || format!("{:?}: stops {:?}, tells {:?}", ended.branches, ended.cut, ended.items),
        );
        for turn in &ended.cut {
            let asked = (StopKind::BranchEnded, ENDED_BY, StopThen::Continue);
            self.witness.stop_asked(&self.database, account, *turn, asked);
        }
        self.witness.own_items(&self.database, &ended.items);
        let is_cut = |(_, state): &&(_, BranchState)| matches!(state, BranchState::Cancelled | BranchState::Expired);
        self.counts.cut_short += ended.branches.iter().filter(is_cut).count() as u64;
        self.counts.folded += ended.items.len() as u64;
    }

    pub(crate) fn note(&mut self, what: &'static str, numbers: [u64; 2], text: impl FnOnce() -> String) {
        self.trace.note(self.database.now, what, numbers, text);
    }

    /// What a run without an end waits for.
    fn waiting(&self) -> String {
        let neglected = self.database.neglected();
        let sessions: Vec<String> = self
            .database
            .sessions
            .iter()
            .filter(|(_, row)| row.queued > 0 || row.active_turn.is_some())
            .map(|((_, id), row)| {
                format!(
                    "session {id}: {} queued {} turn {:?} fence {} owner {:?} wake {:?} closed {:?}",
                    row.phase, row.queued, row.active_turn, row.fence, row.lease_owner, row.wake_at, row.closed
                )
            })
            .collect();
        format!(
            "after {} ms: {} neglected, {} outbox rows, {} messages, {} deeds; {}",
            self.database.now,
            neglected.len(),
            self.database.outbox.len(),
            self.broker.queued.len(),
            self.deeds.len(),
            sessions.join("; ")
        )
    }
}
