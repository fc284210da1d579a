//! Delivery: dispatch queue, claimer, one worker a turn, recorder. As `service.rs` wires them, without its channels.

use delivery::{
    breaker::{ProviderFault, fault_of},
    providers::{Effects, Reconciled},
    queue::dispatcher::DispatchQueue,
    store::SessionName,
    turn::{
        call::{Report, looked_up},
        resume::Due,
        settle::CallOutcome,
        work::Work,
    },
};
use domain::Gate;
use uuid::Uuid;

use super::{Act, Process};
use crate::simulation::{
    broker::Queued,
    bugs::Bug,
    database::{
        Millis,
        claims::Claimed,
        outbox::{Message, Service},
        succession::{Succeeded, Succession},
    },
    provider::{Seen, calls},
    settings::Settings,
    world::{Fate, World},
};

/// Pause between two looks for stop requests whose hints were lost.
const STOPS_INTERVAL: i64 = 1_000;
/// As `sweep_interval_ms`.
const SWEEP_INTERVAL: i64 = 1_000;

#[derive(Debug)]
pub(crate) struct Conductor {
    line: DispatchQueue,
    /// Taken from the dispatch queue, to be claimed in the name of a replica.
    hand: Option<(Vec<SessionName>, Uuid)>,
    workers: Vec<Worker>,
    reports: Vec<Report>,
    /// Sessions with a call here, of which a request to stop was heard.
    hints: Vec<SessionName>,
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
    /// The connection was closed on request: the provider's record is read until it says that the call has ended.
    Confirming {
        next: Millis,
        until: Millis,
    },
}

impl Conductor {
    pub(crate) fn new(settings: &Settings) -> Conductor {
        Conductor {
            line: DispatchQueue::new(std::sync::Arc::new(settings.delivery.clone())),
            hand: None,
            workers: Vec::new(),
            reports: Vec::new(),
            hints: Vec::new(),
        }
    }
}

impl Conductor {
    fn has_call_of(&self, name: &SessionName) -> bool {
        self.workers.iter().any(|worker| worker.work.name() == *name)
    }

    /// When its next step becomes possible.
    pub(super) fn moments(&self, at: &mut impl FnMut(Option<Millis>)) {
        for worker in &self.workers {
            if let Stage::Confirming { next, .. } = worker.stage {
                at(Some(next));
            }
        }
    }
}

impl Worker {
    fn is_ready(&self, now: Millis) -> bool {
        match self.stage {
            Stage::Taken | Stage::Asking => true,
            Stage::Calling(_) => self.work.stop.is_cancelled(),
            Stage::Confirming { next, .. } => next <= now,
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
        if !conductor.hints.is_empty() {
            acts.push(Act::LookAtStops);
        }
        if process.stops_sweep_at <= now && process.cut_off_until <= now && self.has_stops(p) {
            acts.push(Act::SweepStops);
        }
        acts.extend(
            (0..conductor.workers.len())
                .filter(|n| conductor.workers[*n].is_ready(now))
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
            Message::SessionStopRequested(message) => (message.account.clone(), message.session_id),
            Message::ToolFinished(message) => (message.account.clone(), message.session_id),
            Message::ToolRequested(_) | Message::ToolApproved(_) | Message::Notification(_) | Message::Event(_) => {
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
        let opened = self.database.settle_breakers();
        self.note("unparked", [p as u64, opened.len() as u64], || {
            format!("process {p} opens {opened:?}")
        });
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
        self.counts.runs += runs(&claimed);
        let parked_by = |gate| claimed.parked.iter().filter(|park| park.gate == gate).count() as u64;
        self.counts.collecting += parked_by(Gate::Collect);
        self.counts.without_provider += parked_by(Gate::Provider);
        self.counts.paused += parked_by(Gate::Pause);
        self.counts.resumed += claimed.resumed.len() as u64;
        self.note(
            "claimed",
            [claimed.started.len() as u64, claimed.resumed.len() as u64],
            || {
                format!(
                    "process {p}: starts {:?}, resumes {:?}, parks {:?}, leaves {:?}; {fate:?}",
                    claimed.started, claimed.resumed, claimed.parked, claimed.left
                )
            },
        );
        self.note_succeeded(p, &claimed.succeeded);
        self.witness.claimed(&self.database, &claimed, &self.settings);
        self.witness.tried(&self.database, &claimed.work, &self.settings);
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

    /// Generations that ended in a transaction of this process.
    fn note_succeeded(&mut self, p: usize, all: &[Succeeded]) {
        for one in all {
            match one.succession {
                Succession::Rotated(_) => self.counts.rotated += 1,
                Succession::Reset { .. } => self.counts.reset += 1,
            }
            self.note("succeeded", [p as u64, one.moved.len() as u64], || {
                format!(
                    "process {p}: session {} by {}: {:?}, moves {:?}, cancels {:?}",
                    one.old.1, one.next, one.succession, one.moved, one.cancelled
                )
            });
            self.branches_ended(&one.branches);
            self.witness.succeeded(&self.database, one);
        }
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
        let is_stopped = work.stop.is_cancelled();
        // Nothing was sent yet.
        if stage == Stage::Taken && work.due == Due::Send && is_stopped {
            self.report(p, work, CallOutcome::NotSent);
            return;
        }
        let process = &self.processes[p];
        if !process.is_alive(self.database.now) || process.incarnation.is_none_or(|one| one.id != replica) {
            self.processes[p].conductor.line.free(work.name(), false);
            return;
        }
        if is_stopped {
            self.stopped(p, Worker { work, stage, replica });
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

    /// A turn is to end, and its call may have begun (`call.rs`): the connection is closed, and the record of an agent with
    /// effects of its own is read until it says that the call has ended.
    fn stopped(&mut self, p: usize, worker: Worker) {
        let Worker { work, stage, replica } = worker;
        let now = self.database.now;
        if let Stage::Calling(id) = stage {
            self.counts.dropped += 1;
            let turn = work.turn.id;
            self.note("dropped", [p as u64, id], || {
                format!("process {p}: the call of turn {turn}")
            });
            self.provider.hang_up(|request| request.id == id, &mut self.random);
        }
        if work.effects == Effects::GatewayOnly {
            self.report(p, work, CallOutcome::Stopped { confirmed: true });
            return;
        }
        let every = self.settings.delivery.look_up_delay_ms.i64();
        let until = match stage {
            Stage::Confirming { until, .. } => until,
            Stage::Taken | Stage::Calling(_) | Stage::Asking => now + self.settings.delivery.stop_confirm_ms_max.i64(),
        };
        let record = self
            .provider
            .reconcile(work.turn.id, work.attempt, self.settings.has_record, &mut self.random);
        let (turn, attempt) = (work.turn.id, work.attempt);
        self.note("confirmed", [p as u64, 0], || {
            format!("turn {turn}:{attempt}: {record:?}")
        });
        let outcome = match record {
            Reconciled::Ran(answer) => CallOutcome::Answered(answer),
            Reconciled::Failed(_) | Reconciled::DidNotRun => CallOutcome::Stopped { confirmed: true },
            Reconciled::Unknown { .. } => CallOutcome::Stopped { confirmed: false },
            Reconciled::StillRunning | Reconciled::Unreachable(_) if now + every > until => {
                CallOutcome::Stopped { confirmed: false }
            }
            Reconciled::StillRunning | Reconciled::Unreachable(_) => {
                let next = now + every;
                self.processes[p].conductor.workers.push(Worker {
                    work,
                    stage: Stage::Confirming { next, until },
                    replica,
                });
                return;
            }
        };
        self.report(p, work, outcome);
    }

    /// Every delivery that listens hears a request to stop, at most once (`stop.rs`).
    pub(crate) fn hear(&mut self, name: SessionName) {
        for p in 0..self.processes.len() {
            let process = &self.processes[p];
            let listens = process.service == Service::Delivery && process.is_running(self.database.now);
            if listens && process.conductor.has_call_of(&name) && !self.random.chance(200) {
                self.processes[p].conductor.hints.push(name.clone());
            }
        }
    }

    /// `STOPS_FIND`: the rows decide. A turn that runs here under its fence is told.
    pub(super) fn look_at_stops(&mut self, p: usize) {
        let names = std::mem::take(&mut self.processes[p].conductor.hints);
        // After an error, the sweep finds them again.
        if self.fate(p) != Fate::Committed {
            return;
        }
        for name in names {
            let Some((turn, fence)) = self.database.stop_found(&name) else {
                continue;
            };
            let workers = &self.processes[p].conductor.workers;
            let told = workers.iter().filter(|worker| {
                let work = &worker.work;
                work.name() == name && work.turn.id == turn && work.turn.fence == fence
            });
            told.for_each(|worker| worker.work.stop.cancel());
            self.note("stop heard", [p as u64, 0], || {
                format!("process {p}: turn {turn} under {fence}")
            });
        }
    }

    /// Whether the sweep would find a request that is not known here.
    fn has_stops(&self, p: usize) -> bool {
        let process = &self.processes[p];
        process.incarnation.is_some_and(|incarnation| {
            let found = self.database.stopping(incarnation.id);
            found.iter().any(|name| {
                let mut workers = process.conductor.workers.iter();
                workers.any(|worker| worker.work.name() == *name && !worker.work.stop.is_cancelled())
            })
        })
    }

    /// `session_stopping`: requests whose hints were lost.
    pub(super) fn sweep_stops(&mut self, p: usize) {
        let now = self.database.now;
        self.processes[p].stops_sweep_at = now + STOPS_INTERVAL;
        let Some(incarnation) = self.processes[p].incarnation else {
            return;
        };
        if self.fate(p) != Fate::Committed {
            return;
        }
        let conductor = &mut self.processes[p].conductor;
        for name in self.database.stopping(incarnation.id) {
            if conductor.has_call_of(&name) {
                conductor.hints.push(name);
            }
        }
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
        self.witness.sent(&work);
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
        let (agents, people) = (&self.agents, self.rates.people);
        let tools = |random: &mut crate::simulation::random::Random, _round: usize| calls(random, agents, people);
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
            Seen::Error(error) => {
                let fault = fault_of(&error);
                self.report_with(p, work, CallOutcome::Failed(error), fault);
            }
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
        self.report_with(p, work, outcome, None);
    }

    fn report_with(&mut self, p: usize, work: Work, outcome: CallOutcome, fault: Option<ProviderFault>) {
        self.processes[p].conductor.reports.push(Report {
            work,
            outcome,
            mismatch: None,
            fault,
            unconfirmed: None,
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
        self.counts.replay_calls += recorded.replay_calls as u64;
        let begun = &recorded.begun;
        self.counts.turns += begun.started.len() as u64;
        self.counts.gone_on += begun.started.len() as u64;
        self.counts.runs += runs(begun);
        self.counts.stopped += recorded.written.iter().filter(|outcome| outcome.stopped).count() as u64;
        self.counts.parked += recorded.written.iter().filter(|outcome| outcome.parked).count() as u64;
        self.witness.recorded(&recorded.written);
        self.note_succeeded(p, &recorded.succeeded);
        for ended in &recorded.ended {
            self.branches_ended(ended);
        }
        self.witness.claimed(&self.database, begun, &self.settings);
        self.witness.tried(&self.database, &begun.work, &self.settings);
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

/// Turns of several items.
fn runs(claimed: &Claimed) -> u64 {
    claimed.started.iter().filter(|(_, _, items)| items.len() > 1).count() as u64
}
