//! Stopping: while the broker is down, with a batch in progress, and with a congested connection.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use messaging::{BatchHandler, ConsumerOptions, Incoming, TopologyLimits, Verdict};
use tokio::sync::Notify;

use super::{Grave, Scripted, options, publish_payloads, start, start_with, text, until_seen, until_settled};
use crate::support::{broker, until, updating, within};

#[tokio::test]
async fn stopping_works_while_the_broker_is_down() {
    let mut broker = broker().await;
    let handler = Scripted::done();
    let running = start(&broker, &handler, &Grave::default());
    publish_payloads(&broker, &["a"]).await;
    until_seen(&handler, 1).await;
    broker.server.kill().await.unwrap();
    running.stop().await;

    // Also for a loop that never attached to its consumer.
    let running = start(&broker, &handler, &Grave::default());
    running.stop().await;
}

/// Reports that it has a batch, and holds it until it is released.
#[derive(Clone)]
struct Held {
    handler: Scripted,
    begun: Arc<Notify>,
    allowed: Arc<Notify>,
}

impl Held {
    fn new(handler: &Scripted) -> Held {
        Held {
            handler: handler.clone(),
            begun: Arc::default(),
            allowed: Arc::default(),
        }
    }
}

impl BatchHandler for Held {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        self.begun.notify_one();
        self.allowed.notified().await;
        self.handler.handle(batch).await
    }
}

#[tokio::test]
async fn stopping_works_with_a_batch_in_hand_and_a_connection_that_takes_nothing_in() {
    let mut broker = broker().await;
    publish_payloads(&broker, &["1", "2", "3"]).await;
    let handler = Scripted::done();
    let held = Held::new(&handler);
    let running = start_with(
        &broker.bus,
        updating(TopologyLimits::default()),
        options(),
        held.clone(),
        &Grave::default(),
    );
    within("a batch in hand", held.begun.notified()).await;
    broker.server.kill().await.unwrap();
    until("the loss shows", async || (!broker.bus.is_connected()).then_some(())).await;
    // Fills the client's buffer for an unavailable server.
    let flood = async {
        loop {
            broker.bus.client().publish("flood", "".into()).await.unwrap();
        }
    };
    let flooding = tokio::time::timeout(Duration::from_millis(300), flood).await;
    assert!(flooding.is_err());
    held.allowed.notify_one();
    running.stop().await;
    assert!(!handler.seen().is_empty());
}

#[tokio::test]
async fn stopping_settles_the_batch_in_hand_and_leaves_the_rest_to_others() {
    let broker = broker().await;
    publish_payloads(&broker, &["1", "2", "3", "4", "5", "6"]).await;
    let handler = Scripted::done();
    let held = Held::new(&handler);
    let small = ConsumerOptions {
        batch_messages_max: NonZeroUsize::new(2).unwrap(),
        ..options()
    };
    let running = start_with(
        &broker.bus,
        updating(TopologyLimits::default()),
        small,
        held.clone(),
        &Grave::default(),
    );
    within("a batch in hand", held.begun.notified()).await;
    running.stop.cancel();
    held.allowed.notify_one();
    running.stop().await;
    let first = handler.seen().len();
    assert!((1..=2).contains(&first), "{first}");

    // Another replica gets the rest now and not after the server's thirty seconds.
    let other = Scripted::done();
    let running = start(&broker, &other, &Grave::default());
    until_seen(&other, 6 - first).await;
    until_settled(&broker).await;
    running.stop().await;
    let mut all: Vec<String> = handler.seen().iter().chain(&other.seen()).map(text).collect();
    all.sort();
    assert_eq!(all, ["1", "2", "3", "4", "5", "6"]);
}
