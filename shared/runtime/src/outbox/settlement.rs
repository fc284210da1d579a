//! What becomes of rows whose messages the broker has taken: deleted, or, where a reader is awaited, noted as stored.
//!
//! Nobody waits for either, so they wait a moment and are written together: a row that is still there is no more than a
//! message that a crash would have published twice. Readers are usually faster than the note, and a row that is gone by
//! then costs no write at all.

use domain::error_chain;
use std::time::Duration;

use storage::{
    Database,
    outbox::{Settled, outbox_settle},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tracing::warn;

use super::millis;
use crate::settings::OutboxSettings;

/// Batches waiting for the database. Full, publishing waits for it.
pub(super) const SETTLEMENTS_MAX: usize = 8;
/// Rows that wait; more are written at once.
const WAITING_MAX: usize = 2_048;
/// Written before the sweep takes a row for one that was never sent, with room for a slow write.
const DELAYS_PER_SWEEP_AGE: u32 = 8;

pub(super) struct Settlement {
    database: Database,
    delay: Duration,
    look_ms: i64,
    waiting: Settled,
    /// When the oldest of them is written.
    due: Instant,
}

impl Settlement {
    pub(super) fn new(database: &Database, settings: &OutboxSettings) -> Settlement {
        Settlement {
            database: database.clone(),
            delay: settings.sweep_age_ms.duration() / DELAYS_PER_SWEEP_AGE,
            look_ms: millis(settings.unread_look_ms.duration()),
            waiting: Settled::default(),
            due: Instant::now(),
        }
    }

    /// As much at once as has come together. Ends when the relay and its sweeps have.
    pub(super) async fn run(mut self, mut rx: mpsc::Receiver<Settled>) {
        let mut batches = Vec::new();
        loop {
            let received = tokio::select! {
                // Loses nothing when it is dropped.
                received = rx.recv_many(&mut batches, SETTLEMENTS_MAX) => received,
                () = sleep_until(self.due), if self.waiting.count() > 0 => {
                    self.settle().await;
                    continue;
                }
            };
            if received == 0 {
                self.settle().await;
                return;
            }
            if self.waiting.count() == 0 {
                self.due = Instant::now() + self.delay;
            }
            for batch in &mut batches {
                self.waiting.append(batch);
            }
            batches.clear();
            // A stream of batches that never pauses keeps the clock from being looked at.
            if self.waiting.count() >= WAITING_MAX || self.due <= Instant::now() {
                self.settle().await;
            }
        }
    }

    async fn settle(&mut self) {
        let settled = std::mem::take(&mut self.waiting);
        let rows = settled.count();
        if rows == 0 {
            return;
        }
        if let Err(error) = outbox_settle(&self.database, settled, self.look_ms).await {
            // The sweep takes them for unsent, publishes them a second time, and settles them then.
            let error = error_chain(&error);
            warn!(rows, error, "published outbox rows neither deleted nor noted");
        }
    }
}
