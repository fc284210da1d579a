//! Delivery: dispatch queue, claimer, one worker a turn, recorder. As `service.rs` wires them, without its channels.

use delivery::{
    queue::dispatcher::DispatchQueue,
    store::SessionName,
    turn::{
        call::{Report, looked_up},
        resume::Due,
        settle::CallOutcome,
        work::Work,
    },
};
use uuid::Uuid;

use super::{Act, Process};
use crate::simulation::{
    broker::Queued,
    bugs::Bug,
    database::outbox::Message,
    provider::{Seen, calls},
    settings::Settings,
    world::{Fate, World},
};

/// As `sweep_interval_ms`.
const SWEEP_INTERVAL: i64 = 1_000;

#[derive(Debug)]
pub(crate) struct Conductor {
    line: DispatchQueue,
    /// Taken from the dispatch queue, to be claimed in the name of a replica.
    hand: Option<(Vec<SessionName>, Uuid)>,
    workers: Vec<Worker>,
    reports: Vec<Report>,
}

#[derive(Debug)]
struct Worker {
    work: Work,
    stage: Stage,
    /// The replica that claimed the session.
    replica: Uuid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Taken,
    /// A call is in flight.
    Calling(u64),
    /// The connection broke: the provider's record is read.
    Asking,
}

impl Conductor {
    pub(crate) fn new(settings: &Settings) -> Conductor {
        Conductor {
            line: DispatchQueue::new(std::sync::Arc::new(settings.delivery.clone())),
            hand: None,
            workers: Vec::new(),
            reports: Vec::new(),
        }
    }
}

impl Process {
    /// The turns have begun. Workers of an ended incarnation stop before their call.
    fn take(&mut self, work: Vec<Work>, replica: Uuid) {
        let unheard = work.iter().filter(|work| !work.heard.is_heard());
        self.told.extend(unheard.map(|work| (work.turn.id, work.heard.clone())));
        self.conductor.workers.extend(work.into_iter().map(|work| Worker {
            work,
            stage: Stage::Taken,
            replica,
        }));
    }
}

impl World {
    pub(super) fn delivery_acts(&self, p: usize, acts: &mut Vec<Act>) {
        let process = &self.processes[p];
        let conductor = &process.conductor;
        let now = self.database.now;
        if process.sweep_at <= now
            && process.cut_off_until <= now
            && self
                .database
                .sessions
                .values()
                .any(|row| self.database.is_neglected(row))
        {
            acts.push(Act::SweepSessions);
        }
        if conductor.hand.is_none() && conductor.line.waiting() > 0 && process.is_alive(now) {
            acts.push(Act::TakeBatch);
        }
        if conductor.hand.is_some() {
            acts.push(Act::Claim);
        }
        let ready = |worker: &Worker| !matches!(worker.stage, Stage::Calling(_));
        acts.extend(
            (0..conductor.workers.len())
                .filter(|n| ready(&conductor.workers[*n]))
                .map(Act::Work),
        );
        if !conductor.reports.is_empty() {
            acts.push(Act::Record);
        }
    }

    /// A wake-up: the handler queues the session.
    pub(super) fn wake(&mut self, p: usize, queued: &Queued) {
        let name = match &queued.message {
            Message::SessionResolved(message) => (message.account.clone(), message.session_id),
            Message::SessionClosed(message) => (message.account.clone(), message.session_id),
            Message::ToolFinished(message) => (message.account.clone(), message.session_id),
            Message::ToolRequested(_) | Message::Notification(_) | Message::Event(_) => {
                unreachable!("delivery reads wake-ups")
            }
        };
        self.processes[p].conductor.line.wake(name);
        self.acknowledge(queued.token);
    }

    pub(super) fn sweep_sessions(&mut self, p: usize) {
        let now = self.database.now;
        self.processes[p].sweep_at = now + SWEEP_INTERVAL;
        if self.fate(p) != Fate::Committed {
            return;
        }
        let names = self.database.neglected();
        self.note("swept", [p as u64, names.len() as u64], || {
            format!("process {p} finds {names:?}")
        });
        for name in names {
            self.processes[p].conductor.line.wake(name);
        }
    }

    pub(super) fn take_batch(&mut self, p: usize) {
        let process = &mut self.processes[p];
        let Some(incarnation) = process.incarnation else { return };
        let names = process
            .conductor
            .line
            .take(self.settings.delivery.claim_batch_max.usize());
        if !names.is_empty() {
            process.conductor.hand = Some((names, incarnation.id));
        }
    }

    pub(super) fn claim(&mut self, p: usize) {
        let Some((names, replica)) = self.processes[p].conductor.hand.take() else {
            return;
        };
        let fate = self.fate(p);
        if fate == Fate::Failed {
            self.not_claimed(p, names);
            return;
        }
        let claimed = self.database.claim(&names, replica, &self.settings, self.bug);
        self.counts.turns += claimed.started.len() as u64;
        self.counts.resumed += claimed.resumed.len() as u64;
        self.note(
            "claimed",
            [claimed.started.len() as u64, claimed.resumed.len() as u64],
            || {
                format!(
                    "process {p}: starts {:?}, resumes {:?}, leaves {:?}; {fate:?}",
                    claimed.started, claimed.resumed, claimed.left
                )
            },
        );
        self.witness.claimed(&self.database, &claimed);
        if fate == Fate::Unanswered {
            self.not_claimed(p, names);
            return;
        }
        let process = &mut self.processes[p];
        process.relay.extend(claimed.outbox);
        for name in claimed.left {
            process.conductor.line.free(name, false);
        }
        process.take(claimed.work, replica);
    }

    /// Both errors are retryable.
    fn not_claimed(&mut self, p: usize, names: Vec<SessionName>) {
        for name in names {
            self.processes[p].conductor.line.free(name, true);
        }
    }

    pub(super) fn work(&mut self, p: usize, n: usize) {
        let Worker { work, stage, replica } = self.processes[p].conductor.workers.remove(n);
        if work.due == Due::Abort {
            self.report(p, work, CallOutcome::Aborted);
            return;
        }
        let process = &self.processes[p];
        if !process.is_alive(self.database.now) || process.incarnation.is_none_or(|one| one.id != replica) {
            self.processes[p].conductor.line.free(work.name(), false);
            return;
        }
        if stage == Stage::Asking || work.due == Due::LookUp {
            let record =
                self.provider
                    .reconcile(work.turn.id, work.attempt, self.settings.has_record, &mut self.random);
            let (turn, attempt) = (work.turn.id, work.attempt);
            self.note("looked up", [p as u64, 0], || {
                format!("turn {turn}:{attempt}: {record:?}")
            });
            self.report(p, work, looked_up(record));
            return;
        }
        self.send(p, work, replica);
    }

    fn send(&mut self, p: usize, work: Work, replica: Uuid) {
        let now = self.database.now;
        let open = self.provider.requests.iter().find(|request| {
            // A holder that was frozen when its lease ended still has its connection; its record will be stale.
            request.open
                && request.session_key == work.turn.key
                && !self.processes[request.holder].overslept
                && !self.processes[request.holder].is_frozen(now)
        });
        if let Some(open) = open {
            self.witness.overlapping(open, work.turn.id);
        }
        let id = self.provider.request(&work, p);
        let (turn, attempt, fence) = (work.turn.id, work.attempt, work.turn.fence);
        self.note("sent", [p as u64, id], || {
            format!("process {p}: turn {turn}:{attempt} under fence {fence}")
        });
        self.processes[p].conductor.workers.push(Worker {
            work,
            stage: Stage::Calling(id),
            replica,
        });
    }

    /// An event of a call at the provider.
    pub(crate) fn provider_proceeds(&mut self, n: usize) {
        let request = self.provider.requests[n].clone();
        let agents = &self.agents;
        let tools = |random: &mut crate::simulation::random::Random, _round: usize| calls(random, agents);
        let seen = self.provider.proceed(n, &self.rates, tools, &mut self.random);
        self.note("provider", [request.id, u64::from(seen.is_some())], || {
            format!(
                "turn {}:{} round {}: {seen:?}",
                request.turn, request.attempt, request.round
            )
        });
        self.look_at_runs(&request);
        let Some((id, seen)) = seen else { return };
        let p = request.holder;
        let workers = &mut self.processes[p].conductor.workers;
        let Some(n) = workers.iter().position(|worker| worker.stage == Stage::Calling(id)) else {
            return;
        };
        let Worker { work, replica, .. } = workers.remove(n);
        match seen {
            Seen::Answer(answer) => self.report(p, work, CallOutcome::Answered(answer)),
            Seen::Error(error) if error.next_step(work.effects) == delivery::providers::NextStep::Reconcile => {
                self.processes[p].conductor.workers.push(Worker {
                    work,
                    stage: Stage::Asking,
                    replica,
                });
            }
            Seen::Error(error) => self.report(p, work, CallOutcome::Failed(error)),
        }
    }

    /// An agent with effects of its own acts once on a call, whatever happens to the connection.
    fn look_at_runs(&mut self, request: &crate::simulation::provider::Request) {
        let own = self.database.turns.iter().any(|((_, id), row)| {
            *id == request.turn && self.settings.effects(&row.provider) == delivery::providers::Effects::Own
        });
        let runs = self
            .provider
            .begun
            .get(&(request.turn, request.round))
            .copied()
            .unwrap_or_default();
        if own && runs > 1 {
            let (turn, round) = (request.turn, request.round);
            self.witness.breaks("I6", || {
                format!("an agent with effects of its own acted {runs} times in round {round} of turn {turn}")
            });
        }
    }

    fn report(&mut self, p: usize, work: Work, outcome: CallOutcome) {
        self.processes[p].conductor.reports.push(Report {
            work,
            outcome,
            mismatch: None,
        });
    }

    pub(super) fn record(&mut self, p: usize) {
        let reports = &mut self.processes[p].conductor.reports;
        let count = reports.len().min(self.settings.delivery.settle_batch_max.usize());
        let batch: Vec<Report> = reports.drain(..count).collect();
        let fate = self.fate(p);
        if fate == Fate::Failed {
            self.processes[p].conductor.reports.splice(0..0, batch);
            return;
        }
        let (going_on, replica) = self.going_on(p, &batch);
        let recorded = self
            .database
            .record(&batch, (&going_on, replica), &self.settings, self.bug);
        self.counts.stale += recorded.stale;
        let begun = &recorded.begun;
        self.counts.turns += begun.started.len() as u64;
        self.counts.gone_on += begun.started.len() as u64;
        self.witness.recorded(&recorded.written);
        self.witness.claimed(&self.database, begun);
        for (name, ..) in &begun.started {
            self.witness.goes_on(&self.processes[p].conductor.line, name);
        }
        self.note("recorded", [recorded.written.len() as u64, recorded.stale], || {
            format!(
                "process {p}: {:?}, begins {:?}; {fate:?}",
                recorded.written, begun.started
            )
        });
        if fate == Fate::Unanswered {
            self.processes[p].conductor.reports.splice(0..0, batch);
            return;
        }
        let process = &mut self.processes[p];
        process.relay.extend(recorded.outbox);
        process.take(recorded.begun.work, replica);
        for (name, more) in recorded.free {
            process.conductor.line.free(name, more);
        }
    }

    /// The sessions of these reports that may start their next turns, and the replica that would hold their leases.
    fn going_on(&mut self, p: usize, batch: &[Report]) -> (Vec<SessionName>, Uuid) {
        let brief = self.random.chance(500);
        let process = &self.processes[p];
        let Some(incarnation) = process.incarnation.filter(|_| process.is_alive(self.database.now)) else {
            return (Vec::new(), Uuid::nil());
        };
        let may = |work: &Work| {
            self.bug == Some(Bug::PlaceKeptUnasked)
                || process.conductor.line.may_go_on(&work.name(), &work.provider, brief)
        };
        let sessions = batch.iter().map(|report| &report.work).filter(|work| may(work));
        (sessions.map(Work::name).collect(), incarnation.id)
    }

    /// The leases are lost: calls are aborted, and the next holders find the turns in their recorded state.
    pub(super) fn stop_workers(&mut self, p: usize) {
        let workers = std::mem::take(&mut self.processes[p].conductor.workers);
        for worker in workers {
            self.processes[p].conductor.line.free(worker.work.name(), false);
        }
        self.provider.hang_up(|request| request.holder == p, &mut self.random);
    }
}
