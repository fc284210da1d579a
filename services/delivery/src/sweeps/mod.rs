//! Sweeps: without input, safe to run twice and from every replica. They find what a lost wake-up or a dead replica left.

use std::time::Duration;

use storage::{Database, directory::session_neglected};
use tokio::{sync::mpsc, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{service::Signal, store::SessionName};

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
    // Where the last look ended: what was found there may stay as it is for long, and hides nobody behind it.
    let mut after: Option<SessionName> = None;
    loop {
        tokio::select! {
            // A tick that is dropped was not begun.
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        match session_neglected(&database, after.as_ref(), sessions_max).await {
            Ok(names) if names.is_empty() => after = None,
            Ok(names) => {
                let full = i32::try_from(names.len()).is_ok_and(|found| found >= sessions_max);
                after = names.last().filter(|_| full).cloned();
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
