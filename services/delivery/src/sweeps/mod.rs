//! Sweeps: without input, safe to run twice and from every replica. They find sessions after a lost wake-up or a dead
//! replica, and notifications that have waited too long ([`overdue`]).

pub mod overdue;

use std::time::Duration;

use domain::error_chain;
use runtime::{
    Peers,
    sweep::{Sweep, Ticks},
};
use storage::{
    Database,
    directory::{NeglectedRound, WaitingRound},
};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{metrics::Metrics, queue::signal::Signal};

/// Finds neglected sessions: queued work without a lease, a due retry, tools awaited too long, a lease whose holder is
/// dead. Runs at intervals, and at once when a holder dies.
pub async fn neglected(
    database: Database,
    interval: Duration,
    sessions_max: i32,
    mut others: Peers,
    signals: mpsc::Sender<Signal>,
    stop: CancellationToken,
) {
    let mut ticks = Ticks::every(interval, stop);
    let mut round = NeglectedRound::default();
    let sweep = Sweep::new(database.role().service(), "neglected_sessions");
    loop {
        tokio::select! {
            running = ticks.next() => if !running { return },
            () = others.one_ended() => {}
        }
        let found = sweep.once(round.look(&database, sessions_max)).await;
        let names = found.unwrap_or_default();
        if !names.is_empty() && signals.send(Signal::Wake(names)).await.is_err() {
            return;
        }
    }
}

/// Maximum number of sessions per query: some milliseconds of Postgres.
const SESSIONS_READ_MAX: i32 = 1_000;

/// Reads the age of the queue for the gauge; writes nothing.
pub async fn waiting(database: Database, interval: Duration, metrics: Metrics, stop: CancellationToken) {
    let mut round = WaitingRound::default();
    let mut ticks = Ticks::every(interval, stop);
    while ticks.next().await {
        match round.look(&database, SESSIONS_READ_MAX).await {
            Ok(waiting) => metrics.queue(&waiting, OffsetDateTime::now_utc()),
            Err(error) => debug!(error = error_chain(&error), "could not read queue age"),
        }
    }
}
