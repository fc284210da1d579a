//! The figures of one run: rates, latencies, cost, memory, and the statements in Postgres.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) notifications: u32,
    /// Fewer than published if the row's time ended first.
    pub(crate) recorded: u32,
    /// From the first publication (or from the start of the services for a backlog) until all outcomes are recorded.
    pub(crate) per_s: f64,
    /// Until all follow-ups are done too: replies in threads, events published.
    pub(crate) per_s_whole: Option<f64>,
    /// Latency from publication to the recorded outcome.
    pub(crate) latency: Option<Latency>,
    /// CPU milliseconds per 1,000 notifications; per second for a run without notifications.
    pub(crate) cpu_ms: Cost,
    /// Resident memory: maximum, and before any work.
    pub(crate) memory: Vec<Memory>,
    /// Per notification.
    pub(crate) commits: f64,
    pub(crate) statements: f64,
    /// Inserted, updated and deleted rows.
    pub(crate) rows: f64,
    /// The most frequent and slowest statements. Not for the floor.
    pub(crate) top: Vec<Statement>,
    pub(crate) in_flight_max: u64,
    /// Repeated provider calls; only after a kill.
    pub(crate) repeated: u64,
    pub(crate) ready_ms: f64,
    pub(crate) killed: Vec<Killed>,
    /// Cores that other processes of this machine used meanwhile.
    pub(crate) foreign_cores: f64,
}

/// From this value on a run counts as disturbed.
const FOREIGN_CORES_MAX: f64 = 0.25;

impl Figures {
    pub(crate) fn is_disturbed(&self) -> bool {
        self.foreign_cores >= FOREIGN_CORES_MAX
    }

    pub(crate) fn is_unfinished(&self) -> bool {
        self.recorded < self.notifications
    }

    pub(crate) fn memory_most_mib(&self) -> f64 {
        self.memory.iter().map(|memory| memory.most_mib).fold(0.0, f64::max)
    }

    pub(crate) fn memory_idle_mib(&self) -> f64 {
        self.memory.iter().map(|memory| memory.idle_mib).fold(0.0, f64::max)
    }

    pub(crate) fn resumed_ms_most(&self) -> f64 {
        let resumed = self.killed.iter().map(|killed| killed.resumed_ms);
        resumed.fold(f64::NAN, f64::max)
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Cost {
    pub(crate) own: f64,
    pub(crate) postgres: f64,
    pub(crate) nats: f64,
    pub(crate) provider: f64,
}

impl Cost {
    /// All processes without the provider, which is the same for all subjects.
    pub(crate) fn system(&self) -> f64 {
        self.own + self.postgres + self.nats
    }

    /// The provider's work per call is constant, so its CPU time measures the machine's current speed.
    pub(crate) fn of_provider(&self) -> f64 {
        self.system() / self.provider
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) process: String,
    pub(crate) idle_mib: f64,
    pub(crate) most_mib: f64,
}

/// A service that was killed with SIGKILL and restarted at once.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Killed {
    pub(crate) process: String,
    /// Time from its restart until it completed its next piece of work.
    pub(crate) resumed_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Statement {
    /// Per notification.
    pub(crate) calls: f64,
    pub(crate) rows: f64,
    /// How often the statement was planned: a prepared statement that is kept is not planned again.
    pub(crate) plans: f64,
    /// Milliseconds in Postgres per 1,000 notifications.
    pub(crate) ms: f64,
    pub(crate) plan_ms: f64,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

impl Latency {
    /// Milliseconds at a quantile of a histogram of microseconds.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Latency {
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a run")]
        let ms = |us: u64| us as f64 / 1e3;
        Latency {
            p50_ms: ms(histogram.value_at_quantile(0.5)),
            p99_ms: ms(histogram.value_at_quantile(0.99)),
            max_ms: ms(histogram.max()),
        }
    }
}

/// Up to ten minutes, in microseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("bounds that are constants")
}
