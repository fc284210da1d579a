//! Sweeps: without input, safe to run twice and from every replica. They find what a lost wake-up or a dead replica left.

use std::time::Duration;

use storage::{Database, directory::session_neglected};
use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::service::Signal;

/// Looks for sessions that something should happen to and nobody is seeing to: queued work without a lease, a retry
/// that is due, tools awaited too long, a lease whose holder is gone.
pub async fn neglected(
    database: Database,
    interval: Duration,
    sessions_max: i32,
    signals: mpsc::Sender<Signal>,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // A tick that is dropped was not begun.
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        match session_neglected(&database, sessions_max).await {
            Ok(names) if names.is_empty() => {}
            Ok(names) => {
                if signals.send(Signal::Wake(names)).await.is_err() {
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
