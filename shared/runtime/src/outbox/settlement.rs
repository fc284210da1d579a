//! Settles rows whose messages the broker has acknowledged: deletes them, or, if a reader is awaited, marks them as
//! stored.
//!
//! No caller waits for a settlement, so rows are collected briefly and written together. A crash before the write
//! publishes their messages twice, and no more. Readers usually delete an awaited row before it is marked; then the
//! mark costs no write.

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

/// Batches waiting for the database. When it is full, publishing waits.
pub(super) const SETTLEMENTS_MAX: usize = 8;
/// Rows that are collected; a larger number is written at once.
const WAITING_MAX: usize = 2_048;
/// The write must precede the sweep's age limit, with room for a slow write. Otherwise the sweep takes the row for an
/// unpublished one.
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

    /// Writes all collected rows together. Ends when the relay and its sweeps have ended.
    pub(super) async fn run(mut self, mut rx: mpsc::Receiver<Settled>) {
        let mut batches = Vec::new();
        loop {
            let received = tokio::select! {
                // Cancel-safe.
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
            // A continuous stream of batches would never let the timer be polled.
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
            // The sweep takes them for unpublished, publishes them a second time, and settles them then.
            let error = error_chain(&error);
            warn!(
                rows,
                error, "could not settle published outbox rows; they will be published again"
            );
        }
    }
}
