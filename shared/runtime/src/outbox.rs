//! The outbox relay: publishes the messages that transactions have stored as outbox rows, and deletes the rows.
//!
//! A message is published in one of two ways. *Memory*: a service hands its rows over right after commit, and they are
//! published within a millisecond. *Sweep*: every few seconds the relay claims older rows that no replica has claimed
//! recently. A crash, a full queue or an unavailable broker left them. No message is lost, since a row is deleted only
//! after the broker has acknowledged its message. A message may be published twice, with the same id.
//!
//! A row of several messages is deleted when the broker has acknowledged all of them, and else published again as a whole.
//! A row whose message is awaited stays until its reader has deleted it (`unread`): the broker's acknowledgement is not
//! enough.
//!
//! Rows of an account that are handed over together or one after the other are published in that order; accounts take turns, in
//! messages. What a full queue left to the sweep is published in its order. A row that fails is left to the sweep and is published after its neighbours: a reader that needs an order takes it from
//! Postgres.

mod settlement;
mod unread;

use std::{sync::Arc, time::Duration};

use contracts::{
    Outgoing,
    event::{Event, EventMessage},
};
use domain::error_chain;
use futures::{FutureExt, future::BoxFuture};
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
    turns::Turns,
};
use settlement::{SETTLEMENTS_MAX, Settlement};

/// Bytes of payloads in the queue or being published from it.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of payloads that are published at one time, and that a sweep claims, of notifications and of everything else each. The
/// row that reaches the limit is included. Some thousands of messages, so that they are published before the claim expires.
const BATCH_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The end of the subject of `branch.ended`.
const BRANCH_ENDED: &str = ".branch.ended";

fn payload_bytes<'r>(rows: impl IntoIterator<Item = &'r OutboxRow>) -> usize {
    rows.into_iter().map(OutboxRow::bytes).sum()
}

/// The handle by which services publish their committed rows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Outbox {
    tx: mpsc::UnboundedSender<(u32, OutboxRow)>,
    /// A permit for each byte of [`QUEUE_BYTES_MAX`].
    room: Arc<Semaphore>,
    /// What a row takes of the room, if its payloads do not take more: so it is full of small rows, too.
    row_bytes_min: usize,
    meters: Metrics,
}

#[derive(Clone, Debug)]
struct Metrics {
    relayed: Counter<u64>,
    overflowed: Counter<u64>,
    waiting: Gauge<u64>,
    branches_ended: Counter<u64>,
    service: KeyValue,
}

impl Outbox {
    /// Starts the relay of one service: it works as the database's role, and only on that role's rows.
    pub fn start(database: &Database, bus: &Bus, settings: &OutboxSettings, shutdown: &Shutdown) -> Outbox {
        let meters = Metrics::new(database.role().service());
        let (tx, rx) = mpsc::unbounded_channel();
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
        let sweep = relay
            .clone()
            .sweep("outbox_unsent", |relay| relay.sweep_once().boxed(), stop.clone());
        shutdown.spawn_support("outbox sweep", sweep);
        let sweep = relay.sweep("outbox_unread", |relay| relay.look_once().boxed(), stop);
        shutdown.spawn_support("outbox unread", sweep);
        let settlement = Settlement::new(&database.for_batches(), settings);
        shutdown.spawn_support("outbox settlement", settlement.run(settled_rx));
        Outbox {
            tx,
            room,
            row_bytes_min: QUEUE_BYTES_MAX / settings.queue_messages_max.usize(),
            meters,
        }
    }

    /// Hands rows over, after their transaction has committed. Never waits: if the queue lacks room, all rows of the
    /// call are left to the sweep, so that their order stays.
    pub fn publish_soon(&self, rows: Vec<OutboxRow>) {
        let count = rows.len();
        if count == 0 {
            return;
        }
        rows.iter()
            .flat_map(|row| &row.messages)
            .for_each(|message| self.meters.committed(message));
        let room_of = |row: &OutboxRow| row.bytes().max(self.row_bytes_min);
        let bytes = u32::try_from(rows.iter().map(room_of).sum::<usize>()).unwrap_or(u32::MAX);
        match self.room.try_acquire_many(bytes) {
            Ok(room) => {
                // The permits are returned after publishing.
                room.forget();
                for row in rows {
                    // The send fails only when the relay has ended with the process.
                    let _ = self.tx.send((u32::try_from(room_of(&row)).unwrap_or(u32::MAX), row));
                }
            }
            Err(_) => {
                self.meters.overflowed(count);
                debug!(rows = count, "outbox queue is full; left to the sweep");
            }
        }
    }
}

/// The result of one sweep batch.
#[derive(Clone, Copy, Default)]
struct Batch {
    rows: usize,
    /// There may be more rows.
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
    _queue: mpsc::UnboundedSender<(u32, OutboxRow)>,
}

impl Relay {
    async fn publish(
        self,
        mut rx: mpsc::UnboundedReceiver<(u32, OutboxRow)>,
        stop: tokio_util::sync::CancellationToken,
    ) {
        let batch_max = self.settings.batch_messages_max.usize();
        let mut waiting: Turns<String, (u32, OutboxRow)> = Turns::default();
        let mut rows_waiting = 0;
        loop {
            if waiting.is_empty() {
                // Dropping `recv` loses nothing. When `stop` fires, the services have ended and their rows are in the
                // queue; closing the queue lets the rest be read.
                let received = tokio::select! {
                    received = rx.recv() => received,
                    () = stop.cancelled(), if !rx.is_closed() => {
                        rx.close();
                        continue;
                    }
                };
                let Some((room, row)) = received else { return };
                waiting.push(row.account.clone(), row.messages.len(), (room, row));
                rows_waiting += 1;
            }
            while let Ok((room, row)) = rx.try_recv() {
                waiting.push(row.account.clone(), row.messages.len(), (room, row));
                rows_waiting += 1;
            }
            let (mut batch, mut messages, mut bytes, mut room) = (Vec::new(), 0, 0, 0);
            while messages < batch_max
                && bytes < BATCH_BYTES_MAX
                && let Some((_, (room_of, row))) = waiting.pop()
            {
                messages += row.messages.len();
                bytes += row.bytes();
                room += room_of as usize;
                batch.push(row);
            }
            rows_waiting -= batch.len();
            self.meters.waiting(rows_waiting);
            self.relay(batch, "memory").await;
            self.room.add_permits(room);
        }
    }

    /// Runs a sweep at its interval, batch after batch until there are no more.
    async fn sweep(
        self,
        name: &'static str,
        once: for<'a> fn(&'a Relay) -> BoxFuture<'a, Result<Batch, StorageError>>,
        stop: tokio_util::sync::CancellationToken,
    ) {
        let sweep = Sweep::new(self.database.role().service(), name);
        let mut ticks = Ticks::every(self.settings.sweep_interval_ms.duration(), stop.clone());
        while ticks.next().await {
            // Without a connection, claiming rows would only keep other replicas from publishing them, and the broker
            // cannot be asked whether a message is lost.
            while self.bus.is_connected() && !stop.is_cancelled() {
                let swept = sweep.once(once(&self)).await;
                if swept.is_none_or(|batch| !batch.more) {
                    break;
                }
            }
        }
    }

    /// Publishes one batch of claimed rows.
    async fn sweep_once(&self) -> Result<Batch, StorageError> {
        let limit = self.settings.batch_messages_max.get();
        let claim = Claim {
            age_ms: millis(self.settings.sweep_age_ms.duration()),
            taken_ms: millis(self.settings.claim_timeout_ms.duration()),
            rows_max: i64::from(limit),
            bytes_max: BATCH_BYTES_MAX as i64,
        };
        let mut rows = outbox_claim(&self.database, &claim).await?;
        let full = rows.len() >= limit as usize || payload_bytes(&rows) >= BATCH_BYTES_MAX;
        let found = rows.len();
        if found == 0 {
            return Ok(Batch::default());
        }
        // Ids are in time order: within one writer this is the order of its transactions.
        rows.sort_by_key(|row| row.id);
        let relayed = self.relay(rows, "sweep").await;
        Ok(Batch {
            rows: relayed,
            // If no row was published, the next batch would fail too.
            more: full && relayed > 0,
        })
    }

    /// Publishes rows in their order and passes those that were taken on to be settled. Gives their number.
    async fn relay(&self, rows: Vec<OutboxRow>, way: &'static str) -> usize {
        let messages: Vec<&Outgoing> = rows.iter().flat_map(|row| &row.messages).collect();
        let mut answers = self.bus.publish_all(&messages).await.into_iter();
        self.shutdown.crash_point("outbox.messages_published").await;
        let mut settled = Settled::default();
        let mut failures = Failures::default();
        let mut relayed = 0;
        for row in rows {
            if row.messages.is_empty() {
                warn!(row = %row.id, account = row.account, "a row of the outbox was packed by another version; left to it");
                continue;
            }
            let (mut is_over, mut sequence) = (true, 0);
            for (message, answer) in row.messages.iter().zip(answers.by_ref()) {
                let is_taken = match answer {
                    Ok(stored) => {
                        sequence = i64::try_from(stored.sequence).unwrap_or(i64::MAX);
                        true
                    }
                    Err(error) if error.is_retryable() => {
                        failures.note(error);
                        false
                    }
                    Err(error) => self.bury(message, "unpublishable", &error.to_string()).await,
                };
                relayed += usize::from(is_taken);
                is_over &= is_taken;
            }
            match is_over {
                true if sequence > 0 && row.is_awaited() => settled.stored.push(StoredRow {
                    account: row.account,
                    id: row.id,
                    sequence,
                }),
                true => settled.over.push(row.key()),
                false => {}
            }
        }
        failures.log();
        let count = settled.count();
        self.meters.relayed(relayed, way);
        self.settle(settled).await;
        count
    }

    async fn settle(&self, settled: Settled) {
        if settled.count() > 0 && self.settled.send(settled).await.is_err() {
            warn!("outbox settlement has ended; its messages will be published again");
        }
    }

    /// Turns an undeliverable message into a dead letter, once. Its row is then deleted.
    async fn bury(&self, message: &Outgoing, reason: &str, detail: &str) -> bool {
        match bury::bury_outgoing(&self.database, self.bus.root(), message, reason, detail).await {
            Ok(()) => true,
            Err(error) => {
                let error = error_chain(&error);
                warn!(
                    message = message.id(),
                    reason, error, "could not write the dead letter of a message"
                );
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
                .with_description("Outbox messages published, by origin: memory, sweep, or unread (again)")
                .build(),
            overflowed: meter
                .u64_counter("signalbox.outbox.overflowed")
                .with_description("Outbox rows that found the queue full and were left to the sweep")
                .build(),
            waiting: meter
                .u64_gauge("signalbox.outbox.waiting")
                .with_description("Outbox rows in the queue")
                .build(),
            branches_ended: meter
                .u64_counter("signalbox.branches.ended")
                .with_description("Ended branches by state")
                .build(),
            service: KeyValue::new("service", service),
        }
    }

    /// What three services write is counted where each hands it over, once it is committed.
    fn committed(&self, message: &Outgoing) {
        if !message.subject.ends_with(BRANCH_ENDED) {
            return;
        }
        if let Ok(EventMessage {
            event: Event::BranchEnded(ended),
            ..
        }) = serde_json::from_slice(&message.payload)
        {
            let labels = [self.service.clone(), KeyValue::new("state", ended.state.as_str())];
            self.branches_ended.add(1, &labels);
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
