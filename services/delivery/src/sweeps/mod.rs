//! Sweeps: without input, safe to run twice and from every replica. They find what a lost wake-up or a dead replica left.

use std::time::Duration;

use runtime::Others;
use storage::{Database, directory::NeglectedRound};
use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::service::Signal;

/// Looks for sessions that something should happen to and nobody is seeing to: queued work without a lease, a retry
/// that is due, tools awaited too long, a lease whose holder is gone. At intervals, and at once when a holder dies.
pub async fn neglected(
    database: Database,
    interval: Duration,
    sessions_max: i32,
    mut others: Others,
    signals: mpsc::Sender<Signal>,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut round = NeglectedRound::default();
    loop {
        tokio::select! {
            // A tick that is dropped was not begun.
            _ = ticks.tick() => {}
            () = others.one_ended() => {}
            () = stop.cancelled() => return,
        }
        match round.look(&database, sessions_max).await {
            Ok(names) => {
                if !names.is_empty() && signals.send(Signal::Wake(names)).await.is_err() {
                    return;
                }
            }
            Err(error) => warn!(
                error = format!("{:#}", anyhow::Error::new(error)),
                "could not look for neglected sessions"
            ),
        }
    }
}
