//! Simulation of the core: the decisions of resolver, delivery and tool-gateway run together against a model of their surroundings.
//! One seed chooses time, ids, the order of messages, their loss and duplication, crashes between any two durable steps, and
//! commits with a lost answer. The same seed makes the same run.
//!
//! Real: every pure decision. Parsing and judging a notification and resolving its session (`resolver::intake`); closing with a
//! task, who is told of a question's end and of a child's, and the item of mail (`storage::lifecycle`); the order of an edited queue,
//! holds, tool policies, who may write to whom, and rings of tasks (`domain`); dispatch queue, admission, due turns and the judgement of outcomes (`delivery`); admission of tool
//! calls (`tool_gateway::decisions`); messages and their ids (`contracts`). Models, small and literal: Postgres ([`database`], each
//! guarded write named after its statement), NATS ([`broker`]), the agents ([`provider`]), and the processes ([`processes`]), state
//! machines with memory only. So a mistake in a statement is not found here, but by the services' own tests and the fault campaign.
//! A mistake in a decision, or in a set of writes, is found here within seconds.
//!
//! A run: [`settings`] draws limits and fault rates; [`deeds`] are the actions of people and publishers; the scheduler ([`world`])
//! picks one step at a time, and [`faults`] may strike after each; then faults end and the run continues until no step is left.
//! [`witness`] checks the invariants after every step and at the end. A failure is reported with the last steps in words
//! ([`trace`]). [`bugs`] shows that the simulation can fail.

#![allow(
    dead_code,
    reason = "both the tests and the fault campaign's program include this, and each uses a part of what is here for both"
)]

pub(crate) mod broker;
pub(crate) mod bugs;
pub(crate) mod database;
pub(crate) mod deeds;
pub(crate) mod faults;
pub(crate) mod processes;
pub(crate) mod provider;
pub(crate) mod random;
pub(crate) mod settings;
pub(crate) mod trace;
pub(crate) mod witness;
pub(crate) mod world;

use std::{
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bugs::Bug;
use witness::Broken;
use world::{Counts, World};

/// A run without a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Summary {
    /// Hash of all events. The same seed gives the same hash.
    pub(crate) hash: u64,
    pub(crate) counts: Counts,
    pub(crate) notifications: u64,
    pub(crate) effects: u64,
}

/// A run with a violation.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) seed: u64,
    pub(crate) broken: Broken,
    /// The last steps, in words.
    pub(crate) steps: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        write!(
            f,
            "seed {}: {} is broken: {}",
            self.seed, self.broken.invariant, self.broken.how
        )
    }
}

/// Runs one seed.
pub(crate) fn simulate(seed: u64) -> Result<Summary, Violation> {
    simulate_with(seed, None)
}

/// Runs one seed with a built-in mistake.
pub(crate) fn simulate_with(seed: u64, bug: Option<Bug>) -> Result<Summary, Violation> {
    let mut world = World::new(seed, bug, false);
    world.run();
    if world.witness.broken.is_none() {
        return Ok(Summary {
            hash: world.trace.hash(),
            counts: world.counts,
            notifications: world.database.notifications.len() as u64,
            effects: world.witness.effects(),
        });
    }
    // Again, with the trace in words.
    let mut world = World::new(seed, bug, true);
    world.run();
    let broken = world
        .witness
        .broken
        .take()
        .expect("the same seed breaks the same promise");
    Err(Violation {
        seed,
        broken,
        steps: world.trace.lines(),
    })
}

/// Totals of many runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Many {
    pub(crate) seeds: u64,
    pub(crate) counts: Counts,
    pub(crate) notifications: u64,
    pub(crate) effects: u64,
}

/// Runs `count` seeds from `from` on, on several threads. Ends at the first failure.
pub(crate) fn run_many(from: u64, count: u64, threads: usize) -> Result<Many, Violation> {
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let done = Mutex::new((Many::default(), None::<Violation>));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut own = Many::default();
                let mut violation = None;
                while !failed.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        break;
                    }
                    let running = Running(from.wrapping_add(n));
                    match simulate(running.0) {
                        Ok(summary) => own.add(&summary),
                        Err(found) => {
                            failed.store(true, Ordering::Relaxed);
                            violation = Some(found);
                        }
                    }
                }
                let mut done = done.lock().expect("no thread panics while it holds the sums");
                done.0.merge(&own);
                // The smallest of several failures, so that the same call mostly fails with the same seed.
                if let Some(found) = violation
                    && done.1.as_ref().is_none_or(|other| found.seed < other.seed)
                {
                    done.1 = Some(found);
                }
            });
        }
    });
    let (many, violation) = done.into_inner().expect("no thread panics while it holds the sums");
    violation.map_or(Ok(many), Err)
}

/// Prints the seed when a run panics, since the thread's message does not name it.
struct Running(u64);

impl Drop for Running {
    #[expect(clippy::print_stderr, reason = "the panic it belongs to is told there")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {} of the simulation panicked", self.0);
        }
    }
}

impl fmt::Display for Many {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            steps,
            turns,
            gone_on,
            resumed,
            routed,
            stale,
            raced,
            crashes,
            leases_lost,
            faults,
            answers_lost,
            stopped,
            dropped,
            runs,
            parked,
            collecting,
            without_provider,
            opened,
            edited,
            refused,
            paused,
            answered,
            too_late,
            approved,
            fired,
            reset,
            rotated,
            spawned,
            cut_short,
            folded,
            replayed,
            replay_calls,
            mailed,
            pulled,
            read,
            bounced,
            replied,
            freed,
            rings,
            children,
        } = self.counts;
        writeln!(f, "{} seeds kept every promise, in {steps} steps", self.seeds)?;
        writeln!(
            f,
            "{} notifications, {turns} turns, {gone_on} with the record of another, {resumed} times carried on, {} effects of tools",
            self.notifications, self.effects
        )?;
        writeln!(
            f,
            "{stopped} turns stopped on request, {dropped} calls dropped, {runs} turns of several items; parked: {parked} times behind a \
             stopped turn, {collecting} for a run; {without_provider} for a provider; {opened} gates opened by items"
        )?;
        writeln!(
            f,
            "{answered} questions ended by persons, {too_late} answers too late, {approved} calls approved, {fired} timers fired; {edited} edits, {refused} \
             refused; {paused} times parked behind a pause; {reset} generations reset, {rotated} rotated"
        )?;
        writeln!(
            f,
            "{spawned} branches made, {cut_short} of them ended early, {folded} items with results; {replayed} replays made, \
             {replay_calls} calls answered from the record"
        )?;
        writeln!(
            f,
            "mail: {mailed} in turns, {pulled} taken during one, {read} read by persons, {bounced} bounced, {replied} answered by code; \
             {freed} tasks freed, {rings} blocks refused, {children} children"
        )?;
        write!(
            f,
            "{crashes} crashes, {leases_lost} leases lost, {answers_lost} answers lost, {faults} other faults; \
             {stale} late writers refused, {raced} races for a session, {routed} batches by known routes"
        )
    }
}

impl Many {
    fn add(&mut self, summary: &Summary) {
        self.seeds += 1;
        self.notifications += summary.notifications;
        self.effects += summary.effects;
        self.counts.add(&summary.counts);
    }

    fn merge(&mut self, other: &Many) {
        self.seeds += other.seeds;
        self.notifications += other.notifications;
        self.effects += other.effects;
        self.counts.add(&other.counts);
    }
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.steps += other.steps;
        self.turns += other.turns;
        self.gone_on += other.gone_on;
        self.resumed += other.resumed;
        self.routed += other.routed;
        self.stale += other.stale;
        self.raced += other.raced;
        self.crashes += other.crashes;
        self.leases_lost += other.leases_lost;
        self.faults += other.faults;
        self.answers_lost += other.answers_lost;
        self.stopped += other.stopped;
        self.dropped += other.dropped;
        self.runs += other.runs;
        self.parked += other.parked;
        self.collecting += other.collecting;
        self.without_provider += other.without_provider;
        self.opened += other.opened;
        self.edited += other.edited;
        self.refused += other.refused;
        self.paused += other.paused;
        self.answered += other.answered;
        self.too_late += other.too_late;
        self.approved += other.approved;
        self.fired += other.fired;
        self.reset += other.reset;
        self.rotated += other.rotated;
        self.spawned += other.spawned;
        self.cut_short += other.cut_short;
        self.folded += other.folded;
        self.replayed += other.replayed;
        self.replay_calls += other.replay_calls;
        self.mailed += other.mailed;
        self.pulled += other.pulled;
        self.read += other.read;
        self.bounced += other.bounced;
        self.replied += other.replied;
        self.freed += other.freed;
        self.rings += other.rings;
        self.children += other.children;
    }
}
