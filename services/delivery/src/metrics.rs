//! What delivery counts. Labels are few and bounded: states and classes, never accounts or ids.

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge},
};

use crate::{
    store::record::Changed,
    turn::{settle::Settled, work::Work},
};

#[derive(Clone, Debug)]
pub struct Metrics {
    settled: Counter<u64>,
    failures: Counter<u64>,
    stale: Counter<u64>,
    tokens: Counter<u64>,
    history: Counter<u64>,
    in_flight: Gauge<u64>,
    waiting: Gauge<u64>,
}

impl Metrics {
    pub fn new() -> Metrics {
        let meter = global::meter("delivery");
        Metrics {
            settled: meter
                .u64_counter("signalbox.delivery.calls")
                .with_description("Provider calls by what followed")
                .build(),
            failures: meter
                .u64_counter("signalbox.delivery.failures")
                .with_description("Failed provider calls by class")
                .build(),
            stale: meter
                .u64_counter("signalbox.delivery.stale")
                .with_description("Outcomes that came too late: another replica held the session")
                .build(),
            tokens: meter
                .u64_counter("signalbox.delivery.tokens")
                .with_description("Tokens as the providers count them")
                .build(),
            history: meter
                .u64_counter("signalbox.delivery.turns_finished")
                .with_description("Finished turns, by whether task_history was called")
                .build(),
            in_flight: meter
                .u64_gauge("signalbox.delivery.sessions_in_flight")
                .with_description("Sessions in this process's hands, of delivery.turns_in_flight_max")
                .build(),
            waiting: meter
                .u64_gauge("signalbox.delivery.sessions_waiting")
                .with_description("Sessions with work that wait in this process; several replicas may know of one")
                .build(),
        }
    }

    /// How busy this process is: what replicas are added and taken away by.
    pub fn line(&self, in_flight: usize, waiting: usize) {
        self.in_flight.record(in_flight as u64, &[]);
        self.waiting.record(waiting as u64, &[]);
    }

    pub fn stale(&self) {
        self.stale.add(1, &[]);
    }

    pub fn settled(&self, work: &Work, settled: &Settled, changed: &Changed) {
        let what = match settled {
            Settled::Finished { usage, .. } => {
                let called = changed.task_history_called;
                self.history.add(
                    1,
                    &[
                        KeyValue::new("task_history_called", called),
                        KeyValue::new("profile_version", work.profile_version.clone()),
                    ],
                );
                if let Some(usage) = usage {
                    self.tokens
                        .add(usage.input_tokens, &[KeyValue::new("direction", "input")]);
                    self.tokens
                        .add(usage.output_tokens, &[KeyValue::new("direction", "output")]);
                }
                "finished"
            }
            Settled::AwaitTools { .. } => "await_tools",
            Settled::Again { class, .. } => {
                self.failures.add(1, &[KeyValue::new("class", *class)]);
                "again"
            }
            Settled::LookAgain { .. } => "look_again",
            Settled::Interrupted { class, .. } => {
                self.failures.add(1, &[KeyValue::new("class", *class)]);
                "interrupted"
            }
            Settled::GaveUp { class, .. } => {
                self.failures.add(1, &[KeyValue::new("class", *class)]);
                "gave_up"
            }
            Settled::Aborted => "aborted",
        };
        self.settled.add(1, &[KeyValue::new("outcome", what)]);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}
