//! Counters of this service. The runtime measures requests.

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

impl Default for Metrics {
    fn default() -> Metrics {
        let meter = global::meter("orchestrator");
        let counter = |name: &'static str, what: &'static str| meter.u64_counter(name).with_description(what).build();
        Metrics {
            refused: counter(
                "signalbox.api.refused",
                "Requests refused by authentication, authorization or the account's share of the outbox, by reason",
            ),
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

    pub fn rolled_back(&self) {
        self.rolled_back.add(1, &[]);
    }
}
