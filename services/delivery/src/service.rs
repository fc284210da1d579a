//! The wiring: who hands what to whom.
//!
//! ```text
//!  handlers, sweep ─ wake ─► conductor ─ batch ─► claimer ─ work ─► one worker a turn ─ report ─► recorder
//!                               ▲                    │                                              │
//!                               └────── free ────────┴──────────────────── free ────────────────────┘
//! ```
//! The conductor keeps the line of woken sessions and never waits for I/O. Claimer and recorder each have one
//! transaction under way; what comes meanwhile is their next batch, so batches are as large as the load makes them.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::Context as _;
use axum::Router;
use messaging::{BatchHandler, Consumer, ConsumerOptions, Durable};
use runtime::{Context, EndsWith, Incarnation, Replica};
use storage::{Parts, StorageError};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::{
    handlers::{SessionClosedHandler, SessionResolvedHandler, ToolFinishedHandler},
    metrics::Metrics,
    prompt::{MARKS_LABEL, MarkSecret},
    providers::{Driver, ProviderSettings},
    queue::dispatcher::Line,
    settings::DeliverySettings,
    store::SessionName,
    sweeps,
    turn::{
        call::{self, Live, Report},
        claim::Claimer,
        recorder::Recorder,
        work::Work,
    },
};

/// Between tries of a transaction that failed for a reason that passes.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Before another try for sessions that somebody else has locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(100);
/// How long wake-ups and outcomes may come together after several have come at once: a transaction costs as much as many
/// of its sessions. Who comes alone waits for nothing.
const GATHER: Duration = Duration::from_millis(3);
/// Pieces of live text that wait for the broker; more are dropped.
const LIVE_WAITING_MAX: usize = 4_096;
const SIGNALS_WAITING_MAX: usize = 4_096;

/// What the conductor is told.
#[derive(Debug)]
pub enum Signal {
    /// These sessions may have something to do.
    Wake(Vec<SessionName>),
    /// These sessions were closed, and may have a turn to end.
    Closed(Vec<SessionName>),
    /// These sessions left our hands; `true`: there is more to do.
    Free(Vec<(SessionName, bool)>),
    /// These sessions were left as they are, since their providers have no slot free.
    WithoutSlot(Vec<(SessionName, String)>),
    /// Accounts' own limits, as just read.
    Limits(Vec<(domain::AccountId, Option<i32>)>),
    /// The claimer can take a batch.
    Idle,
}

/// Starts the service's workers. Gives the address of its health pages.
pub async fn start(context: Context) -> anyhow::Result<SocketAddr> {
    let config: Arc<DeliverySettings> = Arc::new(context.settings.section("delivery")?);
    let drivers = Arc::new(drivers(&context)?);
    let replica = context.start_replica(EndsWith::Lease).await?;
    let metrics = Metrics::new();
    let keys = context.settings.envelope.keyring()?;
    let secret = keys
        .derived(MARKS_LABEL)
        .expect("a keyring of settings has a key that signs");

    let (signals, signalled) = mpsc::channel(SIGNALS_WAITING_MAX);
    let (batches, batched) = mpsc::channel(1);
    let (reports, reported) = mpsc::channel(config.turns_in_flight_max.usize());
    let (live, pieces) = mpsc::channel(LIVE_WAITING_MAX);

    let claimer = Claimer {
        database: context.database.clone(),
        root: context.root().clone(),
        config: Arc::clone(&config),
        drivers: Arc::clone(&drivers),
        profiles: Arc::default(),
        kept: Arc::default(),
        marks: MarkSecret::new(secret),
        shutdown: context.shutdown.clone(),
    };
    let recorder = Recorder {
        database: context.database.clone(),
        root: context.root().clone(),
        config: Arc::clone(&config),
        metrics: metrics.clone(),
        outbox: context.outbox.clone(),
        recorded: Arc::default(),
        shutdown: context.shutdown.clone(),
    };
    let others = replica.others();
    let hands = Hands {
        context: context.clone(),
        replica,
        drivers,
        reports,
        live,
        signals: signals.clone(),
        config: Arc::clone(&config),
        metrics: metrics.clone(),
    };

    context.shutdown.spawn_support("delivery live text", {
        let (bus, stop) = (context.bus.clone(), context.shutdown.support_token());
        async move {
            tokio::select! {
                // Live text may be lost at any moment; at the end it is. Its senders are gone before that.
                () = call::live_publisher(bus, pieces) => stop.cancelled().await,
                () = stop.cancelled() => {}
            }
        }
    });
    context.shutdown.spawn(
        "delivery conductor",
        conduct(
            Arc::clone(&config),
            Arc::clone(&hands.drivers),
            signalled,
            batches,
            context.clone(),
            metrics.clone(),
        ),
    );
    context
        .shutdown
        .spawn("delivery claimer", claim(claimer, batched, hands));
    context
        .shutdown
        .spawn("delivery recorder", record(recorder, reported, signals.clone()));
    consume(
        &context,
        Durable::DeliverySessionResolved,
        SessionResolvedHandler {
            root: context.root().clone(),
            signals: signals.clone(),
        },
    );
    consume(
        &context,
        Durable::DeliverySessionClosed,
        SessionClosedHandler {
            root: context.root().clone(),
            signals: signals.clone(),
        },
    );
    consume(
        &context,
        Durable::DeliveryToolFinished,
        ToolFinishedHandler {
            root: context.root().clone(),
            signals: signals.clone(),
        },
    );
    let sweep = sweeps::neglected(
        context.database.clone(),
        config.sweep_interval_ms.duration(),
        config.sweep_sessions_max.i32(),
        others,
        signals,
        context.shutdown.token(),
    );
    context.shutdown.spawn("delivery sweep", sweep);
    let waiting = sweeps::waiting(
        context.database.clone(),
        context.settings.telemetry.metrics_interval_ms.duration(),
        metrics,
        context.shutdown.token(),
    );
    context.shutdown.spawn("delivery queue age", waiting);
    let address = context.serve(config.listen, Router::new(), context.health()).await?;
    Ok(address)
}

/// `[providers.{name}]`: a driver each.
fn drivers(context: &Context) -> anyhow::Result<HashMap<String, Arc<Driver>>> {
    let settings: HashMap<String, ProviderSettings> = context.settings.section("providers")?;
    if settings.is_empty() {
        warn!("no provider is configured: every turn will fail until [providers.default] is");
    }
    settings
        .into_iter()
        .map(|(name, settings)| {
            let driver = Driver::new(&settings).with_context(|| format!("provider `{name}` cannot be used"))?;
            Ok((name, Arc::new(driver)))
        })
        .collect()
}

fn consume(context: &Context, durable: Durable, handler: impl BatchHandler) {
    let consumer = Consumer {
        bus: context.bus.clone(),
        topology: context.topology.clone(),
        durable,
        options: ConsumerOptions {
            loops: NonZeroUsize::MIN,
            ..ConsumerOptions::default()
        },
        handler,
        dead_letters: Box::new(context.dead_letters()),
    };
    context
        .shutdown
        .spawn("delivery consumer", consumer.run(context.shutdown.token()));
}

/// Keeps the line. Ends when the process stops: what waits is found by another replica.
async fn conduct(
    config: Arc<DeliverySettings>,
    drivers: Arc<HashMap<String, Arc<Driver>>>,
    mut signals: mpsc::Receiver<Signal>,
    batches: mpsc::Sender<Vec<SessionName>>,
    context: Context,
    metrics: Metrics,
) {
    let mut line = Line::new(config.line());
    let mut claimer_idle = true;
    let mut dropped = 0_u64;
    loop {
        tokio::select! {
            // A signal that is not received stays in the channel.
            signal = signals.recv() => match signal {
                Some(Signal::Wake(names)) => dropped += names.into_iter().map(|name| u64::from(!line.wake(name))).sum::<u64>(),
                Some(Signal::Closed(names)) => dropped += names.into_iter().map(|name| u64::from(!line.wake_closed(name))).sum::<u64>(),
                Some(Signal::Free(names)) => names.into_iter().for_each(|(name, more)| line.free(name, more)),
                Some(Signal::WithoutSlot(names)) => names.into_iter().for_each(|(name, provider)| line.set_aside(name, &provider)),
                Some(Signal::Limits(limits)) => for (account, limit) in limits {
                    line.limit(&account, limit.and_then(|limit| usize::try_from(limit).ok()));
                },
                Some(Signal::Idle) => claimer_idle = true,
                None => return,
            },
            () = context.shutdown.cancelled() => return,
        }
        if dropped > 0 && line.waiting() < config.waiting_sessions_max.usize() {
            info!(
                dropped,
                "the line of woken sessions was full; the sweep finds those that did not fit"
            );
            dropped = 0;
        }
        if claimer_idle {
            // A slot is given back before its session is released, so that signal comes after it.
            line.call_back(|provider| drivers.get(provider).map_or(usize::MAX, |driver| driver.slots_free()));
            let batch = line.take(config.claim_batch_max.usize());
            if !batch.is_empty() {
                claimer_idle = false;
                if batches.send(batch).await.is_err() {
                    return;
                }
            }
        }
        metrics.line(line.in_flight(), line.waiting() + line.waiting_aside());
    }
}

/// What a claimed turn is given to.
struct Hands {
    context: Context,
    replica: Replica,
    drivers: Arc<HashMap<String, Arc<Driver>>>,
    reports: mpsc::Sender<Report>,
    live: mpsc::Sender<Live>,
    signals: mpsc::Sender<Signal>,
    config: Arc<DeliverySettings>,
    metrics: Metrics,
}

async fn claim(claimer: Claimer, mut batches: mpsc::Receiver<Vec<SessionName>>, hands: Hands) {
    let hurried = Claimer {
        database: claimer.database.hurried(),
        ..claimer.clone()
    };
    loop {
        let batch = tokio::select! {
            // A batch that is not received stays in the channel.
            batch = batches.recv() => match batch {
                Some(batch) => batch,
                None => return,
            },
            () = hands.context.shutdown.cancelled() => return,
        };
        let incarnation = tokio::select! {
            incarnation = hands.replica.alive() => incarnation,
            () = hands.context.shutdown.cancelled() => return,
        };
        let Some(incarnation) = incarnation else { return };
        let several = batch.len() > 1;
        let mut parts = Parts::of(&batch);
        while let Some(part) = parts.next() {
            let claimer = if parts.hurries(part) { &hurried } else { &claimer };
            let Err(error) = hands.claim(claimer, part, &incarnation).await else {
                continue;
            };
            // One session that cannot be read, or too much at once, must not hold the others up: the same ones would come
            // together again.
            if is_of_the_batch(&error) && parts.halve(part) {
                warn!(
                    error = format!("{:#}", anyhow::Error::new(error)),
                    sessions = part.len(),
                    "could not claim sessions together; trying in halves"
                );
            } else {
                if error.may_retry() {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                hands.not_claimed(part.to_vec(), error).await;
            }
        }
        if several {
            tokio::time::sleep(GATHER).await;
        }
        tell(&hands.signals, Signal::Idle).await;
    }
}

/// Whether less at once may go through: anything that trying again does not mend, and what was too much.
fn is_of_the_batch(error: &StorageError) -> bool {
    !error.may_retry() || error.is_too_much()
}

impl Hands {
    /// Claims a batch and sets a worker on each turn.
    async fn claim(
        &self,
        claimer: &Claimer,
        batch: &[SessionName],
        incarnation: &Incarnation,
    ) -> Result<(), StorageError> {
        let claimed = claimer.claim(batch, incarnation.id).await?;
        self.metrics.taken_over(claimed.taken_over);
        self.context.outbox.publish_soon(claimed.outbox);
        for work in claimed.work {
            self.take(work, incarnation.clone());
        }
        tell(&self.signals, Signal::Limits(claimed.limits)).await;
        let left = claimed.left.into_iter().map(|name| (name, false)).collect();
        tell(&self.signals, Signal::Free(left)).await;
        if !claimed.locked.is_empty() {
            let (signals, stop) = (self.signals.clone(), self.context.shutdown.token());
            self.context
                .shutdown
                .spawn_once("delivery locked sessions", async move {
                    tokio::select! {
                        () = tokio::time::sleep(LOCKED_PAUSE) => tell(&signals, Signal::Wake(claimed.locked)).await,
                        // What waits is found by another replica.
                        () = stop.cancelled() => {}
                    }
                });
        }
        if !claimed.without_slot.is_empty() {
            tell(&self.signals, Signal::WithoutSlot(claimed.without_slot)).await;
        }
        Ok(())
    }

    /// Where trying again may help they are tried again: if only the answer to the commit was lost, their leases are
    /// ours, and no sweep finds what a living replica holds. What can never be claimed must not spin: the sweep brings it
    /// back, slowly.
    async fn not_claimed(&self, batch: Vec<SessionName>, error: StorageError) {
        let again = !is_of_the_batch(&error);
        warn!(
            error = format!("{:#}", anyhow::Error::new(error)),
            sessions = batch.len(),
            again,
            "could not claim sessions"
        );
        let names = batch.into_iter().map(|name| (name, again)).collect();
        tell(&self.signals, Signal::Free(names)).await;
    }

    /// One worker a turn, for the length of one provider call.
    fn take(&self, work: Work, incarnation: Incarnation) {
        let driver = self.drivers.get(&work.provider).cloned();
        let (reports, live, signals) = (self.reports.clone(), self.live.clone(), self.signals.clone());
        let (root, name, stop) = (self.context.root().clone(), work.name(), self.context.shutdown.token());
        let drain = self.config.drain_ms.duration();
        let shutdown = self.context.shutdown.clone();
        self.context.shutdown.spawn_once("delivery turn", async move {
            shutdown.crash_point("delivery.turn_taken").await;
            let drained = async {
                stop.cancelled().await;
                tokio::time::sleep(drain).await;
            };
            let report = tokio::select! {
                // Boxed: a call is large and there are many. Dropped only when the process stops; then the call counts
                // as lost, and the next holder of the lease acts by the provider's rules.
                report = Box::pin(call::run_guarded(work, driver, &root, &live, &incarnation)) => report,
                () = drained => None,
            };
            match report {
                Some(report) => {
                    shutdown.crash_point("delivery.turn_answered").await;
                    // Refused only when the recorder has ended with the process.
                    let _ = reports.send(report).await;
                }
                None => tell(&signals, Signal::Free(vec![(name, false)])).await,
            }
        });
    }
}

/// Records until every worker is gone, also after the stop: what was answered is written down.
async fn record(recorder: Recorder, mut reports: mpsc::Receiver<Report>, signals: mpsc::Sender<Signal>) {
    let hurried = Recorder {
        database: recorder.database.hurried(),
        ..recorder.clone()
    };
    let mut batch = Vec::new();
    loop {
        if reports
            .recv_many(&mut batch, recorder.config.settle_batch_max.usize())
            .await
            == 0
        {
            return;
        }
        let several = batch.len() > 1;
        // One transaction holds one outcome a session; a session is in one pair of hands, so there are no two.
        let mut alone = BTreeSet::new();
        let mut parts = Parts::of(&batch);
        while let Some(part) = parts.next() {
            let recorder = if parts.hurries(part) { &hurried } else { &recorder };
            let Err(error) = record_patiently(recorder, part, &signals, StorageError::waits_for_lock).await else {
                continue;
            };
            // One bad report must not hold the others up, nor one whose session is locked.
            if parts.halve(part) {
                warn!(
                    error = format!("{:#}", anyhow::Error::new(error)),
                    reports = part.len(),
                    "could not record outcomes together; trying in halves"
                );
            } else {
                alone.insert(part[0].work.turn_id);
            }
        }
        for report in batch.drain(..).filter(|report| alone.contains(&report.work.turn_id)) {
            let recording = record_alone(recorder.clone(), report, signals.clone());
            recorder.shutdown.spawn_once("delivery outcome", recording);
        }
        batch.clear();
        if several {
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// So often an outcome that takes too long is tried alone before its attempt counts as failed, if others were recorded meanwhile.
const ALONE_TRIES_MAX: u32 = 3;
const ALONE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Records one outcome that the database refused in its batch. Runs in a worker of its own, so that no batch waits for it.
async fn record_alone(recorder: Recorder, report: Report, signals: mpsc::Sender<Signal>) {
    let one = [report];
    if let Err(error) = record_while_slow(&recorder, &one, &signals).await {
        let [report] = one;
        record_unrecordable(&recorder, report, &error, &signals).await;
    }
}

/// Tries one outcome until it is recorded, or the database takes it in no form, or in no time though it took others: where it
/// takes none, it is the database that is slow.
async fn record_while_slow(
    recorder: &Recorder,
    one: &[Report; 1],
    signals: &mpsc::Sender<Signal>,
) -> Result<(), StorageError> {
    let before = recorder.recorded.load(Ordering::Relaxed);
    let (mut tries, mut pause) = (1, RETRY_PAUSE);
    loop {
        let others_are_recorded = || recorder.recorded.load(Ordering::Relaxed) > before;
        match record_patiently(recorder, one, signals, |_| false).await {
            Err(error) if error.is_too_much() && (tries < ALONE_TRIES_MAX || !others_are_recorded()) => tries += 1,
            ended => return ended,
        }
        tokio::time::sleep(pause).await;
        pause = ALONE_PAUSE_MAX.min(pause * 2);
    }
}

/// What the database takes in no form, or in no time, must not leave its session in our hands for as long as we live: the attempt is
/// recorded as failed, without any of the provider's words. Failing even that, the lease stays until this process ends
/// or loses it, and its next holder finds the turn in flight and acts by the provider's rules.
async fn record_unrecordable(
    recorder: &Recorder,
    report: Report,
    error: &StorageError,
    signals: &mpsc::Sender<Signal>,
) {
    let (turn_id, session_id) = (report.work.turn_id, report.work.session_id);
    tracing::error!(%turn_id, %session_id, error = error as &dyn std::error::Error, "an outcome could not be recorded; its attempt counts as failed");
    let name = report.work.name();
    if let Err(error) = record_while_slow(recorder, &[report.unrecordable()], signals).await {
        tracing::error!(%turn_id, %session_id, error = &error as &dyn std::error::Error, "not even the failure could be recorded");
        tell(signals, Signal::Free(vec![(name, false)])).await;
    }
}

/// Tries until it is recorded or cannot be. `ends`: what else is no reason to try again.
async fn record_patiently(
    recorder: &Recorder,
    reports: &[Report],
    signals: &mpsc::Sender<Signal>,
    ends: fn(&StorageError) -> bool,
) -> Result<(), StorageError> {
    loop {
        match recorder.record(reports).await {
            Ok(recorded) => {
                recorder.recorded.fetch_add(1, Ordering::Relaxed);
                tell(signals, Signal::Free(recorded.free)).await;
                return Ok(());
            }
            Err(error) if is_of_the_batch(&error) || ends(&error) => return Err(error),
            Err(error) => {
                warn!(
                    error = format!("{:#}", anyhow::Error::new(error)),
                    reports = reports.len(),
                    "could not record outcomes yet"
                );
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Refused only when the conductor has ended with the process.
async fn tell(signals: &mpsc::Sender<Signal>, signal: Signal) {
    let _ = signals.send(signal).await;
}
