//! The outbox relay: publishes what transactions have stored as outbox rows, and deletes it.
//!
//! Two ways in. *Memory*: a service hands its rows over right after commit, and they are on the wire within the
//! millisecond. *Sweep*: every few seconds, rows that are older than that and that nobody has claimed lately are read
//! back: a crash, a full queue or a broker that was away left them. Nothing is lost either way, since a row goes only
//! after the broker has acknowledged its message; a message may be published twice, with the same id.
//!
//! A row whose message is awaited stays until its reader has deleted it (`unread`): the broker's word is not enough.
//!
//! Rows that are handed over together or one after the other are published in that order. A row that fails is left to
//! the sweep and comes later than its neighbours: whoever needs an order takes it from Postgres.

mod settlement;
mod unread;

use std::{sync::Arc, time::Duration};

use domain::error_chain;
use messaging::{Bus, PublishError};
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge},
};
use storage::{
    Database, StorageError,
    outbox::{Claim, OutboxRow, Settled, outbox_claim, unread::StoredRow},
};
use tokio::sync::{Semaphore, mpsc};
use tracing::{debug, warn};

use crate::{
    Shutdown, bury,
    settings::OutboxSettings,
    sweep::{Sweep, Swept, Ticks},
};
use settlement::{SETTLEMENTS_MAX, Settlement};

/// Payloads that wait in memory, or are on their way from there.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Payloads that a sweep takes at one time, of notifications and of everything else; one more of each where they are large.
const SWEEP_BYTES_MAX: usize = 16 * 1024 * 1024;

fn payload_bytes<'r>(rows: impl IntoIterator<Item = &'r OutboxRow>) -> usize {
    rows.into_iter().map(|row| row.outgoing.payload.len()).sum()
}

/// Where services put their committed rows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Outbox {
    tx: mpsc::Sender<OutboxRow>,
    /// A permit for each byte of [`QUEUE_BYTES_MAX`].
    room: Arc<Semaphore>,
    meters: Metrics,
}

#[derive(Clone, Debug)]
struct Metrics {
    relayed: Counter<u64>,
    overflowed: Counter<u64>,
    waiting: Gauge<u64>,
    service: KeyValue,
}

impl Outbox {
    /// Starts the relay of one service: it works as the database's role, and only on that role's rows.
    pub fn start(database: &Database, bus: &Bus, settings: &OutboxSettings, shutdown: &Shutdown) -> Outbox {
        let meters = Metrics::new(database.role().service());
        let (tx, rx) = mpsc::channel(settings.queue_messages_max.usize());
        let room = Arc::new(Semaphore::new(QUEUE_BYTES_MAX));
        let (settled_tx, settled_rx) = mpsc::channel(SETTLEMENTS_MAX);
        let relay = Relay {
            database: database.for_batches(),
            bus: bus.clone(),
            settings: settings.clone(),
            meters: meters.clone(),
            settled: settled_tx,
            shutdown: shutdown.clone(),
            room: Arc::clone(&room),
            _queue: tx.clone(),
        };
        let stop = shutdown.support_token();
        shutdown.spawn_support("outbox relay", relay.clone().publish(rx, stop.clone()));
        shutdown.spawn_support("outbox sweep", relay.clone().sweep(stop.clone()));
        shutdown.spawn_support("outbox unread", relay.look_after_unread(stop));
        let settlement = Settlement::new(&database.for_batches(), settings);
        shutdown.spawn_support("outbox settlement", settlement.run(settled_rx));
        Outbox { tx, room, meters }
    }

    /// Hands rows over, after their transaction has committed. Never waits: what does not fit is left to the sweep,
    /// all rows of the call or none, so that their order stays.
    pub fn publish_soon(&self, rows: Vec<OutboxRow>) {
        let count = rows.len();
        if count == 0 {
            return;
        }
        let bytes = u32::try_from(payload_bytes(&rows)).unwrap_or(u32::MAX);
        let room = self.room.try_acquire_many(bytes).ok();
        match room.zip(self.tx.try_reserve_many(count).ok()) {
            Some((room, places)) => {
                // Given back when they are published.
                room.forget();
                places.zip(rows).for_each(|(place, row)| place.send(row));
            }
            None => {
                self.meters.overflowed(count);
                debug!(rows = count, "outbox queue is full; left to the sweep");
            }
        }
    }
}

/// What a sweep of the outbox came to.
#[derive(Clone, Copy, Default)]
struct Batch {
    rows: usize,
    /// There may be more.
    more: bool,
}

impl Swept for Batch {
    fn rows(&self) -> u64 {
        self.rows as u64
    }
}

#[derive(Clone)]
struct Relay {
    database: Database,
    bus: Bus,
    settings: OutboxSettings,
    meters: Metrics,
    settled: mpsc::Sender<Settled>,
    shutdown: Shutdown,
    room: Arc<Semaphore>,
    /// Keeps the queue open when the service has dropped its own ends: only a stop ends the relay.
    _queue: mpsc::Sender<OutboxRow>,
}

impl Relay {
    async fn publish(self, mut rx: mpsc::Receiver<OutboxRow>, stop: tokio_util::sync::CancellationToken) {
        let batch_max = self.settings.batch_messages_max.usize();
        let mut batch = Vec::with_capacity(batch_max);
        loop {
            // `recv_many` loses nothing when it is dropped. The services have ended when `stop` comes: what they have
            // handed over is in the queue by then, and closing it lets the rest be read.
            let received = tokio::select! {
                received = rx.recv_many(&mut batch, batch_max) => received,
                () = stop.cancelled(), if !rx.is_closed() => {
                    rx.close();
                    continue;
                }
            };
            if received == 0 {
                return;
            }
            self.meters.waiting(rx.len());
            let bytes = payload_bytes(&batch);
            self.relay(std::mem::take(&mut batch), "memory").await;
            self.room.add_permits(bytes);
        }
    }

    async fn sweep(self, stop: tokio_util::sync::CancellationToken) {
        let sweep = Sweep::new(self.database.role().service(), "outbox_unsent");
        let mut ticks = Ticks::every(self.settings.sweep_interval_ms.duration(), stop.clone());
        while ticks.next().await {
            // Claiming what cannot be sent would only keep others from sending it.
            while self.bus.is_connected() && !stop.is_cancelled() {
                let swept = sweep.once(self.sweep_once()).await;
                if swept.is_none_or(|batch| !batch.more) {
                    break;
                }
            }
        }
    }

    /// Publishes one batch of what was left behind.
    async fn sweep_once(&self) -> Result<Batch, StorageError> {
        let limit = self.settings.batch_messages_max.get();
        let claim = Claim {
            age_ms: millis(self.settings.sweep_age_ms.duration()),
            taken_ms: millis(self.settings.claim_timeout_ms.duration()),
            rows_max: i64::from(limit),
            bytes_max: SWEEP_BYTES_MAX as i64,
        };
        let mut rows = outbox_claim(&self.database, &claim).await?;
        let full = rows.len() >= limit as usize || payload_bytes(&rows) >= SWEEP_BYTES_MAX;
        let found = rows.len();
        if found == 0 {
            return Ok(Batch::default());
        }
        // Made in time order: within one writer this is the order of its transactions.
        rows.sort_by_key(|row| row.id);
        let relayed = self.relay(rows, "sweep").await;
        Ok(Batch {
            rows: relayed,
            // Where nothing goes out, the rest would not either.
            more: full && relayed > 0,
        })
    }

    /// Publishes rows in their order and passes those that were taken on to be settled. Gives their number.
    async fn relay(&self, rows: Vec<OutboxRow>, way: &'static str) -> usize {
        let answers = self.bus.publish_all(&rows).await;
        self.shutdown.crash_point("outbox.messages_published").await;
        let mut settled = Settled::default();
        let mut failures = Failures::default();
        for (row, answer) in rows.into_iter().zip(answers) {
            match answer {
                Ok(stored) if row.is_awaited() => settled.stored.push(StoredRow {
                    account: row.account,
                    id: row.id,
                    sequence: i64::try_from(stored.sequence).unwrap_or(i64::MAX),
                }),
                Ok(_) => settled.over.push(row.key()),
                Err(error) if error.is_retryable() => failures.note(error),
                Err(error) => {
                    if self.bury(&row, "unpublishable", &error.to_string()).await {
                        settled.over.push(row.key());
                    }
                }
            }
        }
        failures.log();
        let count = settled.count();
        self.meters.relayed(count, way);
        self.settle(settled).await;
        count
    }

    async fn settle(&self, settled: Settled) {
        if settled.count() > 0 && self.settled.send(settled).await.is_err() {
            warn!("outbox settlement has ended; messages will be published again");
        }
    }

    /// A message that is given up becomes a dead letter, once, and its row goes.
    async fn bury(&self, row: &OutboxRow, reason: &str, detail: &str) -> bool {
        match bury::bury_outgoing(&self.database, self.bus.root(), row, reason, detail).await {
            Ok(()) => true,
            Err(error) => {
                let error = error_chain(&error);
                warn!(message = row.outgoing.id(), reason, error, "cannot bury a message");
                false
            }
        }
    }
}

/// Failures of one batch, logged as one line: when the broker is away, all fail alike.
#[derive(Default)]
struct Failures {
    count: usize,
    first: Option<PublishError>,
}

impl Failures {
    fn note(&mut self, error: PublishError) {
        self.count += 1;
        self.first.get_or_insert(error);
    }

    fn log(self) {
        if let Some(first) = self.first {
            let error = error_chain(&first);
            warn!(
                messages = self.count,
                error, "outbox messages not published; left to the sweep"
            );
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("settings end at a day")
}

impl Metrics {
    fn new(service: &'static str) -> Metrics {
        let meter = global::meter("signalbox.outbox");
        Metrics {
            relayed: meter
                .u64_counter("signalbox.outbox.relayed")
                .with_description("Outbox messages published, by the way they came: memory, sweep, or unread (again)")
                .build(),
            overflowed: meter
                .u64_counter("signalbox.outbox.overflowed")
                .with_description("Outbox messages that found the queue full and were left to the sweep")
                .build(),
            waiting: meter
                .u64_gauge("signalbox.outbox.waiting")
                .with_description("Outbox messages in the queue")
                .build(),
            service: KeyValue::new("service", service),
        }
    }

    fn relayed(&self, count: usize, way: &'static str) {
        self.relayed
            .add(count as u64, &[self.service.clone(), KeyValue::new("way", way)]);
    }

    fn overflowed(&self, count: usize) {
        self.overflowed.add(count as u64, std::slice::from_ref(&self.service));
    }

    fn waiting(&self, count: usize) {
        self.waiting.record(count as u64, std::slice::from_ref(&self.service));
    }
}
