//! The effect of each verdict, and the cost of a failing handler.

use std::{collections::HashMap, sync::atomic::Ordering};

use domain::Count;
use messaging::{BatchHandler, ConsumerOptions, Incoming, Stream, TopologyLimits, Verdict};

use super::{
    Grave, SOON, Scripted, options, publish_payloads, start, start_with, text, until_buried, until_seen, until_settled,
};
use crate::support::{broker, broker_with, message, publish_raw, raw, stream_info, until, updating};

#[tokio::test]
async fn done_publishes_what_follows_and_acknowledges() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| {
        let id = format!("after-{}", text(incoming));
        Verdict::Done(vec![message("signalbox.tool.requested.acme.t-1", &id, text(incoming))])
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a", "b", "c"]).await;
    let running = start(&broker, &handler, &grave);
    until_settled(&broker).await;
    running.stop().await;

    let tools = raw(&broker.bus).get_stream("SIGNALBOX_TOOL").await.unwrap();
    assert_eq!(tools.cached_info().state.messages, 3);
    for (sequence, payload) in [(1, "a"), (2, "b"), (3, "c")] {
        assert_eq!(tools.get_raw_message(sequence).await.unwrap().payload, payload);
    }
    assert!(grave.buried().is_empty());
    let seen = handler.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].subject, "signalbox.session.resolved.acme.t-1");
    assert_eq!(seen[0].id(), Some("id-a"));
    assert_eq!((seen[0].deliveries, seen[0].stream_sequence), (1, 1));
}

/// The server ends a request with a status, and a message may be stored with one.
#[tokio::test]
async fn a_status_above_a_message_ends_no_batch() {
    let broker = broker().await;
    let lines = [
        "NATS/1.0 404 No Messages",
        "NATS/1.0 408 Request Timeout",
        "NATS/1.0 409 Message Size Exceeds MaxBytes",
        "NATS/1.0 100 Idle Heartbeat",
    ];
    for line in lines {
        publish_raw(&broker, "signalbox.session.resolved.acme.t-1", line.as_bytes()).await;
    }
    let (handler, grave) = (Scripted::done(), Grave::default());
    publish_payloads(&broker, &["a", "b"]).await;
    let running = start(&broker, &handler, &grave);
    let buried = until_buried(&grave, lines.len()).await;
    assert!(buried.iter().all(|dead| dead.reason == "unauthenticated"), "{buried:?}");
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(handler.seen().iter().map(text).collect::<Vec<_>>(), ["a", "b"]);
}

/// Headers that the client library cannot parse break its connection. More such messages than may be unsettled at one
/// time block nothing.
#[tokio::test]
async fn messages_with_unreadable_headers_are_buried_and_later_ones_are_handled() {
    let broker = broker_with(TopologyLimits {
        ack_pending_max: Count::new(4),
        ..TopologyLimits::default()
    })
    .await;
    publish_payloads(&broker, &["a"]).await;
    for _ in 0..5 {
        publish_raw(&broker, "signalbox.session.resolved.acme.t-1", b"NATS/1.0\r\nno colon").await;
    }
    until("they are stored", async || {
        let state = stream_info(&broker.bus, Stream::Session).await.state;
        (state.messages == 6).then_some(())
    })
    .await;
    publish_payloads(&broker, &["b"]).await;
    let (handler, grave) = (Scripted::done(), Grave::default());
    let connections = broker.bus.connections_made();
    let running = start(&broker, &handler, &grave);
    let buried = until_buried(&grave, 5).await;
    assert!(buried.iter().all(|dead| dead.reason == "unauthenticated"), "{buried:?}");
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(handler.seen().iter().map(text).collect::<Vec<_>>(), ["a", "b"]);
    // None of the five has broken it twice.
    let ended = broker.bus.connections_made() - connections;
    assert!((1..=5).contains(&ended), "{ended}");
}

#[tokio::test]
async fn messages_come_in_order_and_in_full_batches_when_they_pile_up() {
    let broker = broker().await;
    let payloads: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    publish_payloads(&broker, &payloads.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let handler = Scripted::done();
    let running = start(&broker, &handler, &Grave::default());
    until_settled(&broker).await;
    running.stop().await;
    let seen: Vec<String> = handler.seen().iter().map(text).collect();
    assert_eq!(seen, payloads);
    assert!(handler.batches.load(Ordering::SeqCst) < 1000);
}

#[tokio::test]
async fn retry_comes_back_later_as_a_further_delivery() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| match incoming.deliveries {
        1 | 2 => Verdict::Retry {
            after: SOON,
            why: "not yet".to_owned(),
        },
        _ => Verdict::Done(Vec::new()),
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let running = start(&broker, &handler, &grave);
    until_seen(&handler, 3).await;
    until_settled(&broker).await;
    running.stop().await;
    let deliveries: Vec<i64> = handler.seen().iter().map(|incoming| incoming.deliveries).collect();
    assert_eq!(deliveries, [1, 2, 3]);
    assert!(grave.buried().is_empty());
}

#[tokio::test]
async fn what_fails_too_often_is_buried_with_the_last_reason() {
    let broker = broker().await;
    let handler = Scripted::new(|_| Verdict::Retry {
        after: SOON,
        why: "the tool is broken".to_owned(),
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 3,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        updating(TopologyLimits::default()),
        attempts,
        handler.clone(),
        &grave,
    );
    let buried = until_buried(&grave, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(buried.len(), 1);
    assert_eq!(
        (buried[0].reason.as_str(), buried[0].attempts),
        ("attempts_exhausted", 3)
    );
    assert_eq!(buried[0].detail, "Failed after 3 attempts: the tool is broken");
    assert_eq!(text(&buried[0].incoming), "a");
    assert_eq!(handler.seen().len(), 3);
}

#[tokio::test]
async fn an_outage_counts_as_no_attempt() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| match incoming.deliveries {
        1..=5 => Verdict::Postpone {
            after: SOON,
            why: "Postgres is away".to_owned(),
        },
        6 => Verdict::Retry {
            after: SOON,
            why: "a first real failure".to_owned(),
        },
        _ => Verdict::Done(Vec::new()),
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 2,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        updating(TopologyLimits::default()),
        attempts,
        handler.clone(),
        &grave,
    );
    until_seen(&handler, 7).await;
    until_settled(&broker).await;
    running.stop().await;
    assert!(grave.buried().is_empty(), "{:?}", grave.buried());
}

#[tokio::test]
async fn a_dead_message_is_acknowledged_only_once_it_is_buried() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| match text(incoming).as_str() {
        "bad" => Verdict::Dead {
            reason: "malformed".to_owned(),
            detail: "The payload is no JSON.".to_owned(),
        },
        _ => Verdict::Done(Vec::new()),
    });
    let grave = Grave::refusing(2);
    publish_payloads(&broker, &["good", "bad", "better"]).await;
    let running = start(&broker, &handler, &grave);
    let buried = until_buried(&grave, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(buried.len(), 1);
    assert_eq!((buried[0].reason.as_str(), buried[0].attempts), ("malformed", 1));
    // Refused twice, then accepted; the others were not delayed by it.
    assert_eq!(
        handler.counts(),
        HashMap::from([("good".into(), 1), ("bad".into(), 3), ("better".into(), 1)])
    );
}

#[tokio::test]
async fn a_panic_costs_the_neighbours_nothing_and_the_culprit_is_buried() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| {
        assert_ne!(text(incoming), "poison", "cannot digest this");
        Verdict::Done(vec![message(
            "signalbox.tool.requested.acme.t-1",
            &format!("after-{}", text(incoming)),
            "{}",
        )])
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a", "b", "poison", "c", "d"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 2,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        updating(TopologyLimits::default()),
        attempts,
        handler.clone(),
        &grave,
    );
    let buried = until_buried(&grave, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(text(&buried[0].incoming), "poison");
    assert!(buried[0].detail.contains("cannot digest this"), "{}", buried[0].detail);
    assert_eq!(buried[0].attempts, 2);
    assert_eq!(stream_info(&broker.bus, Stream::Tool).await.state.messages, 4);
}

#[tokio::test]
async fn a_missing_verdict_counts_as_a_panic() {
    struct Forgetful;
    impl BatchHandler for Forgetful {
        async fn handle(&self, _batch: &[Incoming]) -> Vec<Verdict> {
            Vec::new()
        }
    }
    let broker = broker().await;
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 2,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        updating(TopologyLimits::default()),
        attempts,
        Forgetful,
        &grave,
    );
    let buried = until_buried(&grave, 1).await;
    running.stop().await;
    assert!(
        buried[0].detail.contains("0 verdicts on 1 messages"),
        "{}",
        buried[0].detail
    );
}

#[tokio::test]
async fn an_unpublishable_outgoing_message_buries_its_cause() {
    let broker = broker().await;
    let handler = Scripted::new(|incoming| {
        let size = if text(incoming) == "large" { 2 * 1024 * 1024 } else { 1 };
        Verdict::Done(vec![message(
            "signalbox.tool.requested.acme.t-1",
            &text(incoming),
            vec![b'x'; size],
        )])
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["small", "large"]).await;
    let running = start(&broker, &handler, &grave);
    let buried = until_buried(&grave, 1).await;
    until_settled(&broker).await;
    running.stop().await;
    assert_eq!(
        (text(&buried[0].incoming).as_str(), buried[0].reason.as_str()),
        ("large", "unpublishable")
    );
    assert_eq!(stream_info(&broker.bus, Stream::Tool).await.state.messages, 1);
}

#[tokio::test]
async fn an_outgoing_message_without_a_stream_waits_for_it() {
    let broker = broker().await;
    raw(&broker.bus).delete_stream("SIGNALBOX_TOOL").await.unwrap();
    let handler = Scripted::new(|incoming| {
        Verdict::Done(vec![message(
            "signalbox.tool.requested.acme.t-1",
            &text(incoming),
            "{}",
        )])
    });
    let grave = Grave::default();
    publish_payloads(&broker, &["a"]).await;
    let attempts = ConsumerOptions {
        attempts_max: 1,
        ..options()
    };
    let running = start_with(
        &broker.bus,
        updating(TopologyLimits::default()),
        attempts,
        handler.clone(),
        &grave,
    );
    until_seen(&handler, 3).await;
    updating(TopologyLimits::default()).ensure(&broker.bus).await.unwrap();
    until_settled(&broker).await;
    running.stop().await;
    assert!(grave.buried().is_empty());
    assert_eq!(stream_info(&broker.bus, Stream::Tool).await.state.messages, 1);
}
