//! Claims batches of sessions and starts a worker for each turn. One batch at a time: sessions woken meanwhile form the
//! next.

use domain::{Gate, error_chain};
use std::time::Duration;

use runtime::Incarnation;
use storage::{Parts, StorageError};
use tokio::sync::mpsc;
use tracing::warn;

use super::{GATHER, RETRY_PAUSE, call::Report, claim::Claimer, is_of_the_batch, workers::Workers};
use crate::{
    queue::signal::{Signal, tell},
    store::SessionName,
};

/// Pause before a retry of sessions that another transaction has locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

pub async fn claim(
    claimer: Claimer,
    mut batches: mpsc::Receiver<Vec<SessionName>>,
    workers: Workers,
    reports: mpsc::Sender<Report>,
) {
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
            () = workers.context.shutdown.cancelled() => return,
        };
        let incarnation = tokio::select! {
            incarnation = workers.replica.alive() => incarnation,
            () = workers.context.shutdown.cancelled() => return,
        };
        let Some(incarnation) = incarnation else { return };
        let several = batch.len() > 1;
        let mut parts = Parts::of(&batch);
        while let Some(part) = parts.next() {
            let claimer = if parts.hurries(part) { &hurried } else { &claimer };
            let Err(error) = workers.claim(claimer, part, &incarnation, &reports).await else {
                continue;
            };
            // One session that cannot be read, or an oversized batch, must not block the others: the same sessions
            // would meet again in the next batch.
            if is_of_the_batch(&error) && parts.halve(part) {
                warn!(
                    error = error_chain(&error),
                    sessions = part.len(),
                    "claiming a batch failed; retrying it in halves"
                );
            } else {
                if error.is_retryable() {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                workers.not_claimed(part.to_vec(), error).await;
            }
        }
        if several {
            tokio::time::sleep(GATHER).await;
        }
        tell(&workers.signals, Signal::Idle).await;
    }
}

impl Workers {
    /// Claims a batch and starts a worker for each turn.
    async fn claim(
        &self,
        claimer: &Claimer,
        batch: &[SessionName],
        incarnation: &Incarnation,
        reports: &mpsc::Sender<Report>,
    ) -> Result<(), StorageError> {
        let claimed = claimer.claim(batch, incarnation.id).await?;
        self.metrics.taken_over(claimed.taken_over);
        self.context.outbox.publish_soon(claimed.outbox);
        self.take(claimed.work, incarnation, reports);
        tell(&self.signals, Signal::Limits(claimed.limits)).await;
        for park in claimed.parked {
            self.metrics.parked(park.gate);
            if let (Gate::Collect, Some(wake_ms)) = (park.gate, park.wake_ms) {
                let after = Duration::from_millis(wake_ms.unsigned_abs());
                // The sweep finds a session whose alarm has no room.
                let _ = self.alarms.try_send((park.session, after));
            }
        }
        let left = claimed.left.into_iter().map(|name| (name, false)).collect();
        tell(&self.signals, Signal::Free(left)).await;
        if !claimed.locked.is_empty() {
            let (signals, stop) = (self.signals.clone(), self.context.shutdown.token());
            self.context
                .shutdown
                .spawn_once("delivery locked sessions", async move {
                    tokio::select! {
                        () = tokio::time::sleep(LOCKED_PAUSE) => tell(&signals, Signal::Wake(claimed.locked)).await,
                        // Another replica's sweep finds the waiting sessions.
                        () = stop.cancelled() => {}
                    }
                });
        }
        if !claimed.without_slot.is_empty() {
            tell(&self.signals, Signal::WithoutSlot(claimed.without_slot)).await;
        }
        Ok(())
    }

    /// Releases unclaimed sessions. Those whose error is retryable are retried: if only the confirmation of the commit
    /// was lost, this replica holds their leases, and no sweep finds sessions of a live replica. The others must not
    /// spin: the sweep finds them later.
    async fn not_claimed(&self, batch: Vec<SessionName>, error: StorageError) {
        let again = !is_of_the_batch(&error);
        warn!(
            error = error_chain(&error),
            sessions = batch.len(),
            again,
            "could not claim sessions"
        );
        let names = batch.into_iter().map(|name| (name, again)).collect();
        tell(&self.signals, Signal::Free(names)).await;
    }
}
