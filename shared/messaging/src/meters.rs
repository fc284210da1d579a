//! The metrics of the bus. Names and labels are few on purpose: a label per account or subject would grow without end.

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram},
};

pub(crate) struct Metrics {
    consumed: Counter<u64>,
    unauthenticated: Counter<u64>,
    batch_messages: Histogram<u64>,
    batch_seconds: Histogram<f64>,
    published: Counter<u64>,
    rebuilds: Counter<u64>,
    slow_consumers: Counter<u64>,
    deletions: Counter<u64>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let meter = global::meter("signalbox.messaging");
        Metrics {
            consumed: meter
                .u64_counter("signalbox.messaging.consumed")
                .with_description("messages taken from a consumer, by how they were settled")
                .build(),
            unauthenticated: meter
                .u64_counter("signalbox.messaging.unauthenticated")
                .with_description("messages without a valid signature for their subject, by defect")
                .build(),
            batch_messages: meter
                .u64_histogram("signalbox.messaging.batch.messages")
                .with_description("messages in a batch")
                .with_boundaries(vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0])
                .build(),
            batch_seconds: meter
                .f64_histogram("signalbox.messaging.batch.duration")
                .with_description("time from a batch's arrival to its settlement")
                .with_unit("s")
                .with_boundaries(vec![
                    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
                ])
                .build(),
            published: meter
                .u64_counter("signalbox.messaging.published")
                .with_description("messages published, by the broker's answer")
                .build(),
            rebuilds: meter
                .u64_counter("signalbox.messaging.rebuilds")
                .with_description("times that a loop reattached to its consumer")
                .build(),
            slow_consumers: meter
                .u64_counter("signalbox.messaging.slow_consumers")
                .with_description("times that the client dropped messages because a subscription was not read in time")
                .build(),
            deletions: meter
                .u64_counter("signalbox.messaging.deletions")
                .with_description("streams and consumers that were deleted from the NATS server")
                .build(),
        }
    }

    pub(crate) fn consumed(&self, consumer: &'static str, outcome: &'static str, count: u64) {
        let labels = [KeyValue::new("consumer", consumer), KeyValue::new("outcome", outcome)];
        self.consumed.add(count, &labels);
    }

    pub(crate) fn unauthenticated(&self, consumer: &'static str, forgery: &'static str) {
        let labels = [KeyValue::new("consumer", consumer), KeyValue::new("forgery", forgery)];
        self.unauthenticated.add(1, &labels);
    }

    pub(crate) fn batch(&self, consumer: &'static str, messages: usize, seconds: f64) {
        let labels = [KeyValue::new("consumer", consumer)];
        self.batch_messages.record(messages as u64, &labels);
        self.batch_seconds.record(seconds, &labels);
    }

    pub(crate) fn published(&self, outcome: &'static str, count: u64) {
        if count > 0 {
            self.published.add(count, &[KeyValue::new("outcome", outcome)]);
        }
    }

    pub(crate) fn rebuilt(&self, consumer: &'static str) {
        self.rebuilds.add(1, &[KeyValue::new("consumer", consumer)]);
    }

    pub(crate) fn deleted(&self, what: &'static str) {
        self.deletions.add(1, &[KeyValue::new("what", what)]);
    }

    pub(crate) fn slow_consumer(&self) {
        self.slow_consumers.add(1, &[]);
    }
}
