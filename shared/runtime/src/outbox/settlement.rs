//! What becomes of rows whose messages the broker has taken: deleted, or, where a reader is awaited, noted as stored.
//!
//! The note waits a moment. Readers are usually faster, and a row that is gone by then costs no write at all.

use std::time::Duration;

use storage::{
    Database,
    outbox::{
        OutboxRow, outbox_delete,
        unread::{StoredRow, outbox_stored},
    },
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
/// Notes that wait; more are written at once.
const NOTES_MAX: usize = 2_048;
/// The note is written before the sweep takes the row for one that was never sent, with room for a slow write.
const NOTES_PER_SWEEP_AGE: u32 = 8;

/// Rows that the broker, or a dead letter, has taken over.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub over: Vec<OutboxRow>,
    pub stored: Vec<StoredRow>,
}

impl Settled {
    pub(super) fn count(&self) -> usize {
        self.over.len() + self.stored.len()
    }
}

pub(super) struct Settlement {
    database: Database,
    note_delay: Duration,
    look_ms: i64,
    notes: Vec<StoredRow>,
    /// When the oldest note is written.
    due: Instant,
}

impl Settlement {
    pub(super) fn new(database: &Database, settings: &OutboxSettings) -> Settlement {
        Settlement {
            database: database.clone(),
            note_delay: settings.sweep_age_ms.duration() / NOTES_PER_SWEEP_AGE,
            look_ms: millis(settings.unread_look_ms.duration()),
            notes: Vec::new(),
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
                () = sleep_until(self.due), if !self.notes.is_empty() => {
                    self.note().await;
                    continue;
                }
            };
            if received == 0 {
                self.note().await;
                return;
            }
            let mut over = Vec::new();
            for mut batch in batches.drain(..) {
                over.append(&mut batch.over);
                self.keep(batch.stored);
            }
            self.delete(&over).await;
            if self.notes.len() >= NOTES_MAX {
                self.note().await;
            }
        }
    }

    fn keep(&mut self, stored: Vec<StoredRow>) {
        if self.notes.is_empty() {
            self.due = Instant::now() + self.note_delay;
        }
        self.notes.extend(stored);
    }

    async fn note(&mut self) {
        let notes = std::mem::take(&mut self.notes);
        if notes.is_empty() {
            return;
        }
        if let Err(error) = outbox_stored(&self.database, &notes, self.look_ms).await {
            // The sweep takes them for unsent and publishes them a second time.
            let error = format!("{:#}", anyhow::Error::new(error));
            warn!(rows = notes.len(), error, "published outbox rows not noted");
        }
    }

    async fn delete(&self, rows: &[OutboxRow]) {
        if rows.is_empty() {
            return;
        }
        if let Err(error) = outbox_delete(&self.database, rows).await {
            // The sweep finds them, publishes them a second time, and deletes them then.
            let error = format!("{:#}", anyhow::Error::new(error));
            warn!(rows = rows.len(), error, "published outbox rows not deleted");
        }
    }
}
