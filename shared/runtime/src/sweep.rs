//! Sweeps: periodic work that runs in every replica and is idempotent. All sweeps run the same way, so that their
//! duration, row counts and failures are measured. A failed sweep is retried at the next interval and blocks nothing.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram},
};
use storage::StorageError;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Rows that a sweep removes in one transaction: some tens of milliseconds of Postgres.
pub const ROWS_MAX: u32 = 5_000;

/// The number of single rows of one part that may fail. After that the rest of the part is skipped too: the server may
/// lack resources.
const ALONE_MAX: u32 = 10;

/// The schedule of a sweep: now, and at intervals until told to stop. A late run delays the next one.
#[derive(Debug)]
pub struct Ticks {
    interval: Interval,
    stop: CancellationToken,
}

impl Ticks {
    pub fn every(every: Duration, stop: CancellationToken) -> Ticks {
        let mut interval = interval(every);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ticks { interval, stop }
    }

    /// `false`: told to stop. Cancel-safe.
    pub async fn next(&mut self) -> bool {
        self.stop.run_until_cancelled(self.interval.tick()).await.is_some()
    }
}

/// One of a service's sweeps. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sweep {
    name: &'static str,
    labels: [KeyValue; 2],
    seconds: Histogram<f64>,
    rows: Counter<u64>,
    failures: Counter<u64>,
}

impl Sweep {
    pub fn new(service: &'static str, name: &'static str) -> Sweep {
        let meter = global::meter("signalbox.sweep");
        Sweep {
            name,
            labels: [KeyValue::new("service", service), KeyValue::new("sweep", name)],
            seconds: meter
                .f64_histogram("signalbox.sweep.duration")
                .with_unit("s")
                .with_description("Duration of a sweep, failed or not")
                .with_boundaries(vec![0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0, 300.0, 1800.0])
                .build(),
            rows: meter
                .u64_counter("signalbox.sweep.rows")
                .with_description("Rows that sweeps removed, found or published")
                .build(),
            failures: meter
                .u64_counter("signalbox.sweep.failures")
                .with_description("Sweeps that failed, wholly or in part")
                .build(),
        }
    }

    /// Runs the sweep once, to its end. Returns its result, or none if it failed; a failure is logged and counted.
    pub async fn once<T: Swept, E: Into<anyhow::Error>>(&self, run: impl Future<Output = Result<T, E>>) -> Option<T> {
        let begun = Instant::now();
        let ran = run.await;
        self.seconds.record(begun.elapsed().as_secs_f64(), &self.labels);
        match ran {
            Ok(swept) => {
                self.rows.add(swept.rows(), &self.labels);
                Some(swept)
            }
            Err(error) => {
                self.failures.add(1, &self.labels);
                warn!(
                    sweep = self.name,
                    error = format!("{:#}", error.into()),
                    "sweep failed; will retry"
                );
                None
            }
        }
    }
}

/// The result of a sweep, as far as it is counted.
pub trait Swept {
    fn rows(&self) -> u64;
}

impl Swept for u64 {
    fn rows(&self) -> u64 {
        *self
    }
}

impl<T> Swept for Vec<T> {
    fn rows(&self) -> u64 {
        self.len() as u64
    }
}

/// A sweep over parts (accounts, say). A part that fails is skipped, and the other parts are processed.
#[derive(Debug)]
pub struct Parts<E> {
    rows: u64,
    /// Rows per transaction: halved when the database rejects a piece as too large, and raised slowly again.
    rows_max: u32,
    first: Option<E>,
}

impl<E> Default for Parts<E> {
    fn default() -> Self {
        Parts {
            rows: 0,
            rows_max: ROWS_MAX,
            first: None,
        }
    }
}

impl<E: Display> Parts<E> {
    /// Returns whether the part did anything.
    pub fn note(&mut self, part: impl Display, done: Result<u64, E>) -> bool {
        match done {
            Ok(rows) => {
                self.rows += rows;
                rows > 0
            }
            Err(error) => {
                warn!(%part, %error, "sweep skipped a part that failed");
                self.first.get_or_insert(error);
                false
            }
        }
    }

    /// The number of rows in all, or the error of the first part that failed.
    pub fn end(self) -> Result<u64, E> {
        match self.first {
            Some(error) => Err(error),
            None => Ok(self.rows),
        }
    }
}

/// A part in pieces: the whole at first. When the database refuses a piece, it is retried in halves and with fewer
/// rows, down to the row at fault. Only that row is skipped.
#[derive(Debug)]
pub struct Pieces<'b, T> {
    rest: storage::Parts<'b, T>,
    again: Option<&'b [T]>,
    alone: u32,
}

impl<'b, T> Pieces<'b, T> {
    pub fn of(all: &'b [T]) -> Pieces<'b, T> {
        Pieces {
            rest: storage::Parts::of(all),
            again: None,
            alone: 0,
        }
    }

    /// Retries a piece: there may be more of it.
    pub fn again(&mut self, piece: &'b [T]) {
        self.again = Some(piece);
    }
}

impl<'b, T> Iterator for Pieces<'b, T> {
    type Item = &'b [T];

    fn next(&mut self) -> Option<&'b [T]> {
        if self.alone >= ALONE_MAX {
            return None;
        }
        self.again.take().or_else(|| self.rest.next())
    }
}

impl Parts<StorageError> {
    /// How many rows a piece may have.
    pub fn rows_max(&self) -> u32 {
        self.rows_max
    }

    /// Notes the result of a piece of a part. A piece that failed may be retried in smaller pieces. Returns whether it
    /// did anything.
    pub fn note_piece<'b, T>(
        &mut self,
        part: impl Display,
        pieces: &mut Pieces<'b, T>,
        piece: &'b [T],
        done: Result<u64, StorageError>,
    ) -> bool {
        if let Err(error) = &done
            && error.blames_batch()
        {
            let fewer = error.is_too_much() && self.rows_max > 1;
            if fewer {
                self.rows_max /= 2;
            }
            if pieces.rest.halve(piece) {
                return false;
            }
            if fewer {
                pieces.again(piece);
                return false;
            }
        }
        if done.is_ok() {
            // Grows more slowly than it shrinks, so that few attempts are too large.
            self.rows_max = ROWS_MAX.min(self.rows_max + self.rows_max.div_ceil(8));
        }
        pieces.alone += u32::from(done.is_err());
        self.note(part, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_part_blocks_no_other_and_is_reported() {
        let mut parts = Parts::default();
        assert!(parts.note("acme", Ok::<u64, String>(3)));
        assert!(!parts.note("beta", Err("too slow".to_owned())));
        assert!(parts.note("gamma", Ok(4)));
        assert!(!parts.note("delta", Ok(0)));
        assert_eq!(parts.end(), Err("too slow".to_owned()));
        let mut parts = Parts::default();
        parts.note("acme", Ok::<u64, String>(3));
        assert_eq!(parts.end(), Ok(3));
    }

    #[tokio::test]
    async fn a_sweep_that_fails_gives_nothing_and_goes_on() {
        let sweep = Sweep::new("test", "nothing");
        assert_eq!(sweep.once(async { anyhow::Ok(2) }).await, Some(2));
        assert_eq!(sweep.once(async { Err::<u64, _>(anyhow::anyhow!("no")) }).await, None);
    }
}
