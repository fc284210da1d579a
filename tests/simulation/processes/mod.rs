//! The services' processes: state machines over the durable state. A crash loses a process's memory. The scheduler chooses its next
//! [`Act`], and may end it between any two.

mod delivery;
mod relay;
mod resolver;
mod timers;
mod tool_gateway;

use std::collections::VecDeque;

use ::delivery::turn::started::Heard;
use ::resolver::intake::routes::Routes;
use domain::TurnId;
use uuid::Uuid;

use self::{delivery::Conductor, resolver::Reading, tool_gateway::Calling};
use super::{
    database::{Millis, outbox::Service},
    settings::{LEASE, MARGIN, Settings},
    world::{Fate, World},
};

/// One incarnation of a process under one replica id, as `runtime::Incarnation`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incarnation {
    pub(crate) id: Uuid,
    /// By the holder's own clock: slightly before the database's.
    pub(crate) ends: Millis,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) service: Service,
    pub(crate) down_until: Millis,
    pub(crate) frozen_until: Millis,
    /// Disconnected from Postgres.
    pub(crate) cut_off_until: Millis,
    pub(crate) incarnation: Option<Incarnation>,
    /// Its lease is currently not renewed.
    pub(crate) paused: bool,
    /// Its lease ended while it was frozen, and it has not checked the clock since.
    pub(crate) overslept: bool,
    /// Committed rows handed to the relay; and published rows to be deleted.
    pub(crate) relay: VecDeque<Uuid>,
    /// Events of begun turns, of which no row is kept.
    told: VecDeque<(TurnId, Heard)>,
    published: Vec<Uuid>,
    outbox_highest: Option<Uuid>,
    sweep_at: Millis,
    stops_sweep_at: Millis,
    readings: Vec<Reading>,
    routes: Routes,
    conductor: Conductor,
    callings: Vec<Calling>,
    firing: Option<timers::Firing>,
}

/// Possible next steps of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Enter,
    /// It checks the clock after a freeze.
    Wake,
    Relay,
    Tell,
    Settle,
    SweepOutbox,
    LookAfterUnread,
    ClaimPartition,
    GiveUpPartition,
    Read(usize),
    SweepSessions,
    LookAtStops,
    SweepStops,
    TakeBatch,
    Claim,
    Work(usize),
    Record,
    Call(usize),
    LookAtTimers,
    FireTimers,
    SettleMail,
}

impl Process {
    pub(crate) fn new(service: Service, settings: &Settings) -> Process {
        Process {
            service,
            down_until: 0,
            frozen_until: 0,
            cut_off_until: 0,
            incarnation: None,
            paused: false,
            overslept: false,
            relay: VecDeque::new(),
            told: VecDeque::new(),
            published: Vec::new(),
            outbox_highest: None,
            sweep_at: 0,
            stops_sweep_at: 0,
            readings: Vec::new(),
            routes: Routes::default(),
            conductor: Conductor::new(settings),
            callings: Vec::new(),
            firing: None,
        }
    }

    pub(crate) fn is_frozen(&self, now: Millis) -> bool {
        self.frozen_until > now
    }

    pub(crate) fn is_running(&self, now: Millis) -> bool {
        self.down_until <= now && !self.is_frozen(now)
    }

    /// Whether its lease is renewed as time passes.
    pub(crate) fn renews(&self) -> bool {
        self.incarnation.is_some() && !self.paused && !self.overslept
    }

    /// By its own clock, as `Incarnation::is_alive`.
    pub(crate) fn is_alive(&self, now: Millis) -> bool {
        self.incarnation.is_some_and(|one| now < one.ends)
    }

    /// When its next step becomes possible.
    pub(crate) fn moments(&self, now: Millis, neglected: bool, at: &mut impl FnMut(Option<Millis>)) {
        at(Some(self.down_until));
        at(Some(self.frozen_until));
        at(Some(self.cut_off_until));
        if neglected && self.service == Service::Delivery && self.is_running(now) {
            at(Some(self.sweep_at));
        }
        self.conductor.moments(at);
    }
}

impl World {
    pub(crate) fn acts(&self, p: usize, acts: &mut Vec<Act>) {
        let process = &self.processes[p];
        let now = self.database.now;
        if !process.is_running(now) {
            return;
        }
        let reaches_database = process.cut_off_until <= now;
        if process.overslept {
            acts.push(Act::Wake);
        }
        if process.incarnation.is_none() && reaches_database {
            acts.push(Act::Enter);
        }
        if !process.relay.is_empty() && self.broker_is_up() {
            acts.push(Act::Relay);
        }
        if !process.told.is_empty() {
            acts.push(Act::Tell);
        }
        if !process.published.is_empty() && reaches_database {
            acts.push(Act::Settle);
        }
        if reaches_database && self.broker_is_up() && !self.database.outbox_due(process.service, None).is_empty() {
            acts.push(Act::SweepOutbox);
        }
        if reaches_database && self.broker_is_up() && !self.database.outbox_unread(process.service).is_empty() {
            acts.push(Act::LookAfterUnread);
        }
        match process.service {
            Service::Resolver => self.resolver_acts(p, acts),
            Service::Delivery => self.delivery_acts(p, acts),
            Service::ToolGateway => acts.extend((0..process.callings.len()).map(Act::Call)),
            Service::Orchestrator => self.orchestrator_acts(p, acts),
        }
    }

    pub(crate) fn act(&mut self, p: usize, act: Act) {
        match act {
            Act::Enter => self.enter(p),
            Act::Wake => {
                self.processes[p].overslept = false;
                self.lose_leases(p);
            }
            Act::Relay => self.relay(p),
            Act::Tell => self.tell(p),
            Act::Settle => self.settle(p),
            Act::SweepOutbox => self.sweep_outbox(p),
            Act::LookAfterUnread => self.look_after_unread(p),
            Act::ClaimPartition => self.claim_partition(p),
            Act::GiveUpPartition => self.give_up_partition(p),
            Act::Read(n) => self.read(p, n),
            Act::SweepSessions => self.sweep_sessions(p),
            Act::LookAtStops => self.look_at_stops(p),
            Act::SweepStops => self.sweep_stops(p),
            Act::TakeBatch => self.take_batch(p),
            Act::Claim => self.claim(p),
            Act::Work(n) => self.work(p, n),
            Act::Record => self.record(p),
            Act::Call(n) => self.call(p, n),
            Act::LookAtTimers => self.look_at_timers(p),
            Act::FireTimers => self.fire_timers(p),
            Act::SettleMail => self.settle_mail(p),
        }
    }

    /// `REPLICA_INSERT`, under a new id.
    pub(crate) fn enter(&mut self, p: usize) {
        let fate = self.fate(p);
        if fate == Fate::Failed {
            return;
        }
        let (id, now) = (self.database.fresh_id(), self.database.now);
        self.database.replicas.insert(id, now + LEASE);
        if fate == Fate::Committed {
            let ends = now + LEASE - MARGIN;
            let process = &mut self.processes[p];
            process.incarnation = Some(Incarnation { id, ends });
            (process.paused, process.overslept) = (false, false);
            self.note("entered", [p as u64, 0], || format!("process {p} as {id}"));
        }
    }

    /// Stops work under the old leases; leases of the old id never return to it.
    pub(crate) fn lose_leases(&mut self, p: usize) {
        self.counts.leases_lost += 1;
        self.note("leases lost", [p as u64, 0], || format!("process {p}"));
        let process = &mut self.processes[p];
        process.incarnation = None;
        (process.paused, process.overslept) = (false, false);
        self.stop_readings(p);
        self.stop_workers(p);
    }

    /// The process ends and loses its memory.
    pub(crate) fn crash(&mut self, p: usize, down: Millis) {
        self.counts.crashes += 1;
        self.note("crashed", [p as u64, 0], || format!("process {p} for {down} ms"));
        let now = self.database.now;
        self.stop_readings(p);
        for reading in self.processes[p].readings.drain(..) {
            self.database.partitions[usize::from(reading.partition())].locked = false;
        }
        self.provider.hang_up(|request| request.holder == p, &mut self.random);
        let service = self.processes[p].service;
        self.processes[p] = Process {
            down_until: now + down,
            cut_off_until: self.processes[p].cut_off_until,
            ..Process::new(service, &self.settings)
        };
    }

    /// The broker delivers a message to one of its readers.
    pub(crate) fn hand_out(&mut self, n: usize, p: usize) {
        let queued = self.broker.hand_out(n, self.database.now);
        self.note("handed out", [queued.token, p as u64], || {
            format!("{} to process {p}", queued.message.id())
        });
        match self.processes[p].service {
            Service::Delivery => self.wake(p, &queued),
            Service::ToolGateway => self.call_begins(p, queued),
            Service::Resolver | Service::Orchestrator => unreachable!("no message is for it alone"),
        }
    }

    /// An acknowledgement, which may be lost.
    fn acknowledge(&mut self, token: u64) {
        if !self.random.chance(self.rates.ack_lost) {
            self.broker.acknowledge(token);
        }
    }
}
