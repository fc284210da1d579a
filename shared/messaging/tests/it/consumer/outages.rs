//! Processes, servers and consumers that fail, and loops that share the work.

use std::{collections::HashMap, num::NonZeroUsize, time::Duration};

use async_nats::jetstream::consumer::PullConsumer;
use domain::Millis;
use futures::StreamExt;
use messaging::{BatchHandler, ConsumerOptions, Incoming, TopologyLimits, Verdict};

use super::{Grave, Scripted, durable, options, publish_payloads, start, start_with, until_seen, until_settled};
use crate::support::{broker, broker_with, raw, until, updating, verifying, within};

#[tokio::test]
async fn a_message_of_a_dead_process_is_redelivered() {
    let limits = TopologyLimits {
        ack_wait_ms: Millis::new(300),
        ..TopologyLimits::default()
    };
    let broker = broker_with(limits.clone()).await;
    publish_payloads(&broker, &["a"]).await;
    // A process that took the message and died.
    let dying: PullConsumer = raw(&broker.bus)
        .get_consumer_from_stream(durable().name(), "SIGNALBOX_SESSION")
        .await
        .unwrap();
    let mut taken = dying
        .fetch()
        .max_messages(1)
        .expires(Duration::from_secs(5))
        .messages()
        .await
        .unwrap();
    within("the message", taken.next()).await.unwrap().unwrap();
    drop(taken);

    let handler = Scripted::done();
    let running = start_with(
        &broker.bus,
        updating(limits),
        options(),
        handler.clone(),
        &Grave::default(),
    );
    until_seen(&handler, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(handler.seen()[0].deliveries, 2);
}

#[tokio::test]
async fn a_batch_that_takes_long_is_not_delivered_twice() {
    struct Slow(Scripted, Duration);
    impl BatchHandler for Slow {
        async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
            tokio::time::sleep(self.1).await; // the work
            self.0.handle(batch).await
        }
    }
    let limits = TopologyLimits {
        ack_wait_ms: Millis::new(600),
        ..TopologyLimits::default()
    };
    let broker = broker_with(limits.clone()).await;
    publish_payloads(&broker, &["a", "b"]).await;
    let handler = Scripted::done();
    let slow = Slow(handler.clone(), Duration::from_millis(600 * 4));
    let running = start_with(&broker.bus, updating(limits), options(), slow, &Grave::default());
    until_seen(&handler, 2).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(handler.counts(), HashMap::from([("a".into(), 1), ("b".into(), 1)]));
}

#[tokio::test]
async fn several_loops_share_the_work() {
    let broker = broker().await;
    let payloads: Vec<String> = (0..500).map(|number| number.to_string()).collect();
    publish_payloads(&broker, &payloads.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let handler = Scripted::done();
    let loops = ConsumerOptions {
        loops: NonZeroUsize::new(4).unwrap(),
        batch_messages_max: NonZeroUsize::new(10).unwrap(),
        ..options()
    };
    let running = start_with(
        &broker.bus,
        updating(TopologyLimits::default()),
        loops,
        handler.clone(),
        &Grave::default(),
    );
    until_settled(&broker).await;
    running.stop().await;
    let counts = handler.counts();
    assert_eq!(counts.len(), 500);
    assert!(counts.values().all(|count| *count == 1));
}

#[tokio::test]
async fn a_killed_server_interrupts_but_loses_nothing() {
    // Short, since an acknowledgement that was lost with the server leads to a redelivery.
    let limits = TopologyLimits {
        ack_wait_ms: Millis::new(1_000),
        ..TopologyLimits::default()
    };
    let mut broker = broker_with(limits.clone()).await;
    let handler = Scripted::done();
    let running = start_with(
        &broker.bus,
        updating(limits),
        options(),
        handler.clone(),
        &Grave::default(),
    );
    publish_payloads(&broker, &["before"]).await;
    until_seen(&handler, 1).await;
    for round in 0..3 {
        broker.server.kill().await.unwrap();
        broker.server.restart().await.unwrap();
        until("connected again", async || broker.bus.is_connected().then_some(())).await;
        publish_payloads(&broker, &[&format!("after {round}")]).await;
        until("the message arrives", async || {
            handler.counts().contains_key(&format!("after {round}")).then_some(())
        })
        .await;
    }
    until_settled(&broker).await;
    running.stop().await;
}

#[tokio::test]
async fn a_wiped_store_is_consumed_from_when_the_operator_has_made_it_again() {
    let mut broker = broker().await;
    let handler = Scripted::done();
    let running = start(&broker, &handler, &Grave::default());
    publish_payloads(&broker, &["before"]).await;
    until_seen(&handler, 1).await;
    broker.server.wipe_store().await.unwrap();
    broker.server.restart().await.unwrap();
    until("the operator is connected again", async || {
        updating(TopologyLimits::default()).ensure(&broker.bus).await.ok()
    })
    .await;
    publish_payloads(&broker, &["after"]).await;
    until_seen(&handler, 2).await;
    running.stop().await;
}

#[tokio::test]
async fn a_deleted_consumer_is_waited_for() {
    let broker = broker().await;
    let handler = Scripted::done();
    let running = start(&broker, &handler, &Grave::default());
    publish_payloads(&broker, &["before"]).await;
    until_seen(&handler, 1).await;
    until_settled(&broker).await;
    raw(&broker.bus)
        .delete_consumer_from_stream(durable().name(), "SIGNALBOX_SESSION")
        .await
        .unwrap();
    publish_payloads(&broker, &["after"]).await;
    updating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    // The new consumer starts at the beginning: handlers are idempotent.
    until("the message arrives", async || {
        handler.counts().contains_key("after").then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_process_without_the_right_to_create_waits_for_the_streams() {
    let broker = broker().await;
    let handler = Scripted::done();
    let topology = verifying(TopologyLimits::default());
    let running = start_with(&broker.bus, topology, options(), handler.clone(), &Grave::default());
    publish_payloads(&broker, &["before"]).await;
    until_seen(&handler, 1).await;
    raw(&broker.bus).delete_stream("SIGNALBOX_SESSION").await.unwrap();
    updating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    publish_payloads(&broker, &["after"]).await;
    until_seen(&handler, 2).await;
    running.stop().await;
}
