//! Gauges that are polled: whether Postgres and NATS answer, the age of the outbox, the pending messages of the
//! service's consumers, the fill level of its streams. Every replica polls each `telemetry.metrics_interval_ms`. A poll
//! is one short statement and a few requests; its cost does not grow with the backlog.
//!
//! A service polls its own gauges itself (the age of its queue, say), at the same interval.

use std::time::Duration;

use messaging::{Bus, User, consumer_backlogs, stream_fills};
use opentelemetry::{KeyValue, global, metrics::Gauge};
use storage::{Database, outbox::outbox_age};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::sweep::Ticks;

/// A later answer counts as none.
const ANSWER_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Gauges {
    pub(crate) database: Database,
    pub(crate) bus: Bus,
    /// The user whose consumers and streams are polled.
    pub(crate) user: User,
    pub(crate) interval: Duration,
    pub(crate) meters: Metrics,
}

impl Gauges {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut ticks = Ticks::every(self.interval, stop.clone());
        while ticks.next().await {
            // All steps are reads, so a poll may be dropped at any point.
            stop.run_until_cancelled(self.look()).await;
        }
    }

    /// Failures are not logged: the gauge shows them, and the callers that need the dependency log them.
    async fn look(&self) {
        let meters = &self.meters;
        meters.connections(&self.database);
        let asked = Instant::now();
        let age = timeout(ANSWER_MAX, outbox_age(&self.database)).await;
        let age = age.ok().and_then(Result::ok);
        meters.answered("postgres", age.map(|_| asked.elapsed()));
        if let Some(age) = age {
            meters.outbox_age(age.unwrap_or_default());
        }

        let asked = Instant::now();
        let backlogs = timeout(ANSWER_MAX, self.ask_broker()).await;
        let is_there = self.bus.is_connected() && backlogs.is_ok();
        meters.answered("nats", is_there.then(|| asked.elapsed()));
    }

    async fn ask_broker(&self) {
        let meters = &self.meters;
        // A stream that cannot be read is missing, or is being created right now.
        for fill in stream_fills(&self.bus, self.user).await.unwrap_or_default() {
            let stream = [KeyValue::new("stream", fill.stream.name(self.bus.root()))];
            meters.stream_size.record(fill.bytes, &stream);
            if let Some(max) = fill.bytes_max {
                meters.stream_size_max.record(max, &stream);
            }
        }
        for backlog in consumer_backlogs(&self.bus, self.user).await.unwrap_or_default() {
            let consumer = [KeyValue::new("consumer", backlog.durable.name())];
            meters.pending.record(backlog.pending, &consumer);
            meters.unsettled.record(backlog.unsettled, &consumer);
        }
    }
}

pub(crate) struct Metrics {
    up: Gauge<u64>,
    answer: Gauge<f64>,
    connections: Gauge<u64>,
    connections_max: Gauge<u64>,
    outbox_age: Gauge<f64>,
    pending: Gauge<u64>,
    unsettled: Gauge<u64>,
    stream_size: Gauge<u64>,
    stream_size_max: Gauge<u64>,
    service: KeyValue,
}

impl Metrics {
    pub(crate) fn new(service: &'static str) -> Metrics {
        let meter = global::meter("signalbox.gauges");
        Metrics {
            up: meter
                .u64_gauge("signalbox.dependency.up")
                .with_description(
                    "1: Postgres or NATS answered the service's last poll; 0: it did not within two seconds",
                )
                .build(),
            answer: meter
                .f64_gauge("signalbox.dependency.answer")
                .with_unit("s")
                .with_description("How long the last answer took: a statement, or a few requests to JetStream")
                .build(),
            // Named by the OpenTelemetry convention.
            connections: meter
                .u64_gauge("db.client.connection.count")
                .with_description("Connections to Postgres, by whether they are idle or used")
                .build(),
            connections_max: meter
                .u64_gauge("db.client.connection.max")
                .with_description("Maximum connections of the service to Postgres, without those of its leases")
                .build(),
            outbox_age: meter
                .f64_gauge("signalbox.outbox.age")
                .with_unit("s")
                .with_description("Age of the oldest message that the broker has not acknowledged")
                .build(),
            pending: meter
                .u64_gauge("signalbox.messaging.consumer.pending")
                .with_description("Messages of a consumer that were never delivered, over all replicas")
                .build(),
            unsettled: meter
                .u64_gauge("signalbox.messaging.consumer.unsettled")
                .with_description("Messages that were delivered and are not settled, over all replicas")
                .build(),
            stream_size: meter
                .u64_gauge("signalbox.messaging.stream.size")
                .with_unit("By")
                .with_description("Size of a stream")
                .build(),
            stream_size_max: meter
                .u64_gauge("signalbox.messaging.stream.size_max")
                .with_unit("By")
                .with_description("Maximum size of a stream, if it has a limit")
                .build(),
            service: KeyValue::new("service", service),
        }
    }

    fn answered(&self, dependency: &'static str, after: Option<Duration>) {
        let labels = [self.service.clone(), KeyValue::new("dependency", dependency)];
        self.up.record(u64::from(after.is_some()), &labels);
        if let Some(after) = after {
            self.answer.record(after.as_secs_f64(), &labels);
        }
    }

    fn connections(&self, database: &Database) {
        let connections = database.connections();
        let pool = KeyValue::new("db.client.connection.pool.name", self.service.value.clone());
        for (state, count) in [
            ("idle", connections.idle),
            ("used", connections.open - connections.idle),
        ] {
            let labels = [pool.clone(), KeyValue::new("db.client.connection.state", state)];
            self.connections.record(u64::from(count), &labels);
        }
        self.connections_max.record(u64::from(connections.max), &[pool]);
    }

    fn outbox_age(&self, age: Duration) {
        self.outbox_age
            .record(age.as_secs_f64(), std::slice::from_ref(&self.service));
    }
}
