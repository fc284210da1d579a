//! The metrics and log lines of the resolver's decisions (S13). Labels are few and bounded: kinds and reasons, never
//! accounts or ids.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram},
};
use tracing::{debug, info};

use crate::{
    handlers::notification::{Committed, SessionResolution},
    intake::resolve::Finding,
};

#[derive(Clone, Debug)]
pub struct Metrics {
    resolutions: Counter<u64>,
    notifications: Counter<u64>,
    refusals: Counter<u64>,
    batch_messages: Histogram<u64>,
    batch_seconds: Histogram<f64>,
    stale: Counter<u64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let meter = global::meter("resolver");
        Metrics {
            resolutions: meter
                .u64_counter("signalbox.resolver.resolutions")
                .with_description("Resolved sessions, by kind and by whether they were created, reused or reopened")
                .build(),
            notifications: meter
                .u64_counter("signalbox.resolver.notifications")
                .with_description("Notifications by outcome: queued, requeued, duplicate, refused")
                .build(),
            refusals: meter
                .u64_counter("signalbox.resolver.refusals")
                .with_description("Refused notifications by reason")
                .build(),
            batch_messages: meter
                .u64_histogram("signalbox.resolver.batch.messages")
                .with_description("Notifications in one transaction")
                .with_boundaries(vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0])
                .build(),
            batch_seconds: meter
                .f64_histogram("signalbox.resolver.batch.duration")
                .with_description("Time from a batch's arrival to its commit")
                .with_unit("s")
                .with_boundaries(vec![
                    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
                ])
                .build(),
            stale: meter
                .u64_counter("signalbox.resolver.stale")
                .with_description("Batches rejected because another replica holds the partition")
                .build(),
        }
    }
}

impl Metrics {
    pub fn stale(&self) {
        self.stale.add(1, &[]);
    }

    pub fn committed(&self, messages: usize, took: Duration, committed: &Committed) {
        self.batch_messages.record(messages as u64, &[]);
        self.batch_seconds.record(took.as_secs_f64(), &[]);
        let queued: u64 = committed.resolutions.iter().map(|one| one.notifications).sum();
        let outcomes = [
            ("queued", queued - committed.requeued),
            ("requeued", committed.requeued),
            ("duplicate", committed.duplicates),
            ("refused", committed.refusals.len() as u64),
        ];
        for (outcome, count) in outcomes.into_iter().filter(|(_, count)| *count > 0) {
            self.notifications.add(count, &[KeyValue::new("outcome", outcome)]);
        }
        for reason in &committed.refusals {
            self.refusals.add(1, &[KeyValue::new("reason", reason.as_str())]);
        }
        for resolution in &committed.resolutions {
            let labels = [
                KeyValue::new("kind", resolution.kind.as_str()),
                KeyValue::new("finding", resolution.finding.as_str()),
            ];
            self.resolutions.add(1, &labels);
            log(resolution);
        }
    }
}

/// Logs a new generation at info. Reusing the active session happens thousands of times a second: it is in the debug
/// log, in the counter and in the notification's trace.
fn log(resolution: &SessionResolution) {
    macro_rules! line {
        ($level:ident) => {
            $level!(
                account = %resolution.account,
                session_key = resolution.session_key,
                kind = resolution.kind.as_str(),
                generation = resolution.generation.0,
                finding = resolution.finding.as_str(),
                notifications = resolution.notifications,
                "session resolved"
            )
        };
    }
    match resolution.finding {
        Finding::Created | Finding::Reopened => line!(info),
        Finding::Reused => line!(debug),
    }
}
