//! What this service counts beside its requests, which the runtime measures.

use opentelemetry::{KeyValue, global, metrics::Counter};

#[derive(Clone, Debug)]
pub struct Metrics {
    refused: Counter<u64>,
    replayed: Counter<u64>,
    published: Counter<u64>,
    replies: Counter<u64>,
    redriven: Counter<u64>,
    rolled_back: Counter<u64>,
}

impl Metrics {
    pub fn new() -> Metrics {
        let meter = global::meter("orchestrator");
        let counter = |name: &'static str, what: &'static str| meter.u64_counter(name).with_description(what).build();
        Metrics {
            refused: counter(
                "signalbox.api.refused",
                "Requests refused for who sent them, or for what the account has waiting, by reason",
            ),
            replayed: counter("signalbox.api.replayed", "Answers given again for an Idempotency-Key"),
            published: counter(
                "signalbox.notifications.published",
                "Notifications published, by what caused them",
            ),
            replies: counter("signalbox.replies", "Ended turns seen, by what became of their reply"),
            redriven: counter("signalbox.dead_letters.redriven", "Dead letters sent again"),
            rolled_back: counter(
                "signalbox.api.rolled_back",
                "Tries of requests that the database rolled back for the sake of others",
            ),
        }
    }

    /// `reason`: unauthorized, other_account, forbidden, unread_share.
    pub fn refused(&self, reason: &'static str) {
        self.refused.add(1, &[KeyValue::new("reason", reason)]);
    }

    pub fn replayed(&self) {
        self.replayed.add(1, &[]);
    }

    /// `source`: api, message.
    pub fn published(&self, source: &'static str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.published.add(count, &[KeyValue::new("source", source)]);
    }

    /// `outcome`: posted, silent (nothing to post, or nothing may be), unknown_turn.
    pub fn replies(&self, outcome: &'static str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.replies.add(count, &[KeyValue::new("outcome", outcome)]);
    }

    pub fn redriven(&self) {
        self.redriven.add(1, &[]);
    }

    pub fn rolled_back(&self) {
        self.rolled_back.add(1, &[]);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}
