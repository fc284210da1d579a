//! Counters of this service, and gauges of what waits for people and for time. The runtime measures requests.

use std::time::Duration;

use domain::{DeliveryState, error_chain};
use opentelemetry::{KeyValue, global, metrics::Counter};
use runtime::sweep::Ticks;
use storage::{
    Database,
    directory::{outbound_first, question_waiting, timer_first},
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

/// Questions that are counted.
const QUESTIONS_MAX: i32 = 10_000;

#[derive(Clone, Debug)]
pub struct Metrics {
    refused: Counter<u64>,
    nats_refused: Counter<u64>,
    replayed: Counter<u64>,
    published: Counter<u64>,
    replies: Counter<u64>,
    redriven: Counter<u64>,
    rolled_back: Counter<u64>,
    delivered: Counter<u64>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let meter = global::meter("orchestrator");
        let counter = |name: &'static str, what: &'static str| meter.u64_counter(name).with_description(what).build();
        Metrics {
            refused: counter(
                "signalbox.api.refused",
                "Requests refused by authentication, authorization or the account's share of the outbox, by reason",
            ),
            nats_refused: counter("signalbox.nats.refused", "NATS clients refused, by reason"),
            replayed: counter(
                "signalbox.api.replayed",
                "Stored answers repeated for an Idempotency-Key",
            ),
            published: counter(
                "signalbox.notifications.published",
                "Notifications published, by what caused them",
            ),
            replies: counter("signalbox.replies", "Ended turns, by what was done with their reply"),
            redriven: counter("signalbox.dead_letters.redriven", "Dead letters redriven"),
            delivered: counter(
                "signalbox.outbound.deliveries",
                "Attempts to tell a person by e-mail, by what became of the delivery",
            ),
            rolled_back: counter(
                "signalbox.api.rolled_back",
                "Attempts of requests that the database rolled back (deadlock or serialization failure)",
            ),
        }
    }
}

impl Metrics {
    /// `reason`: unauthorized, other_account, forbidden, unread_share.
    pub fn refused(&self, reason: &'static str) {
        self.refused.add(1, &[KeyValue::new("reason", reason)]);
    }

    /// `reason`: host, no_key, other_account, unknown_key, role, connections, unavailable.
    pub fn nats_refused(&self, reason: &'static str) {
        self.nats_refused.add(1, &[KeyValue::new("reason", reason)]);
    }

    pub fn replayed(&self) {
        self.replayed.add(1, &[]);
    }

    /// `source`: api, message.
    pub fn published(&self, source: &'static str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.published.add(count, &[KeyValue::new("source", source)]);
    }

    /// `outcome`: posted, silent (no reply, or one that is not posted), unknown_turn.
    pub fn replies(&self, outcome: &'static str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.replies.add(count, &[KeyValue::new("outcome", outcome)]);
    }

    pub fn redriven(&self) {
        self.redriven.add(1, &[]);
    }

    /// `kind`: email.
    pub fn delivered(&self, kind: &'static str, state: DeliveryState) {
        let labels = [KeyValue::new("kind", kind), KeyValue::new("outcome", state.as_str())];
        self.delivered.add(1, &labels);
    }

    pub fn rolled_back(&self) {
        self.rolled_back.add(1, &[]);
    }
}

/// Reads how many questions are open and how late timers and e-mail are; writes nothing.
pub async fn waiting(database: Database, interval: Duration, stop: CancellationToken) {
    let meter = global::meter("orchestrator");
    let questions = meter
        .u64_gauge("signalbox.questions.open")
        .with_description("Open questions, approvals and reviews of all accounts, at most 10,000")
        .build();
    let late = meter
        .f64_gauge("signalbox.timers.late")
        .with_unit("s")
        .with_description("How long ago the first timer was due that has not fired")
        .build();
    let late_deliveries = meter
        .f64_gauge("signalbox.outbound.late")
        .with_unit("s")
        .with_description("How long ago the first e-mail was due that no sender has taken")
        .build();
    let by = |first: Option<OffsetDateTime>| {
        first.map_or(0.0, |due| (OffsetDateTime::now_utc() - due).as_seconds_f64().max(0.0))
    };
    let mut ticks = Ticks::every(interval, stop);
    while ticks.next().await {
        let read = async {
            let open = question_waiting(&database, QUESTIONS_MAX).await?;
            let timer = timer_first(&database).await?;
            Ok::<_, storage::StorageError>((open.questions, timer, outbound_first(&database).await?))
        };
        match read.await {
            Ok((open, timer, delivery)) => {
                questions.record(open.unsigned_abs(), &[]);
                late.record(by(timer), &[]);
                late_deliveries.record(by(delivery), &[]);
            }
            Err(error) => tracing::debug!(error = error_chain(&error), "could not read what waits"),
        }
    }
}
