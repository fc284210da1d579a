//! Publishing: answers, order, and the ways in which it fails.

use bytes::Bytes;
use contracts::Outgoing;
use futures::StreamExt;
use messaging::{Bus, BusOptions, PublishError, Stream, TopologyLimits, Unpublished};

use crate::support::{bare_broker, broker, broker_with, message, options, publish, raw, stream_info, until, within};

async fn only_error(bus: &Bus, message: Outgoing) -> PublishError {
    let mut results = bus.publish_all(&[message]).await;
    results.remove(0).unwrap_err()
}

#[tokio::test]
async fn thousands_are_stored_in_their_order() {
    let broker = broker().await;
    let messages: Vec<Outgoing> = (0..3000)
        .map(|number| {
            message(
                "signalbox.event.acme.t-1.turn.started",
                &format!("e-{number}"),
                number.to_string(),
            )
        })
        .collect();
    publish(&broker.bus, &messages).await;
    let stream = raw(&broker.bus).get_stream("SIGNALBOX_EVENT").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 3000);
    for sequence in [1, 2, 511, 512, 513, 1024, 2999, 3000] {
        let stored = stream.get_raw_message(sequence).await.unwrap();
        assert_eq!(stored.payload, Bytes::from((sequence - 1).to_string()));
    }
}

#[tokio::test]
async fn a_repeated_id_is_stored_once_and_answered_each_time() {
    let broker = broker().await;
    let wake_up = message("signalbox.session.resolved.acme.t-1", "session.resolved:1:1", "{}");
    publish(&broker.bus, &[wake_up.clone(), wake_up.clone()]).await;
    publish(&broker.bus, &[wake_up]).await;
    assert_eq!(stream_info(&broker.bus, Stream::Session).await.state.messages, 1);
}

#[tokio::test]
async fn a_message_over_the_servers_limit_fails_alone() {
    let broker = broker().await;
    let subject = "signalbox.event.acme.t-1.turn.started";
    let large = message(subject, "large", vec![b'x'; 1024 * 1024 + 1]);
    let results = broker
        .bus
        .publish_all(&[message(subject, "a", "a"), large, message(subject, "b", "b")])
        .await;
    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    let error = results[1].as_ref().unwrap_err();
    assert!(
        matches!(&error.reason, Unpublished::TooLarge { bytes } if *bytes == 1024 * 1024 + 1),
        "{error:?}"
    );
    assert!(!error.is_retryable());
    assert_eq!(stream_info(&broker.bus, Stream::Event).await.state.messages, 2);
}

#[tokio::test]
async fn a_message_over_the_streams_limit_is_not_retryable() {
    let limits = TopologyLimits {
        message_bytes_max: domain::Bytes::new(1000),
        ..TopologyLimits::default()
    };
    let broker = broker_with(limits).await;
    let subject = "signalbox.event.acme.t-1.turn.started";
    let error = only_error(&broker.bus, message(subject, "large", vec![b'x'; 2000])).await;
    assert!(matches!(error.reason, Unpublished::TooLarge { .. }), "{error:?}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_line_break_in_a_header_is_an_error_and_not_a_panic() {
    let broker = broker().await;
    let mut broken = message("signalbox.event.acme.t-1.turn.started", "e-1", "{}");
    broken.headers.set("X-Title", "two\r\nlines");
    let error = only_error(&broker.bus, broken).await;
    assert!(matches!(error.reason, Unpublished::Malformed(_)), "{error:?}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_subject_with_a_blank_is_hopeless() {
    let broker = broker().await;
    let error = only_error(&broker.bus, message("signalbox.event.a b.t.turn.started", "e-1", "{}")).await;
    assert!(matches!(error.reason, Unpublished::Malformed(_)), "{error:?}");
}

#[tokio::test]
async fn without_a_stream_the_answer_says_so() {
    let broker = bare_broker().await;
    let error = only_error(&broker.bus, message("signalbox.session.resolved.acme.t-1", "s-1", "{}")).await;
    assert!(matches!(error.reason, Unpublished::NoStream), "{error:?}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_full_stream_of_notifications_refuses_instead_of_dropping_old_ones() {
    let limits = TopologyLimits {
        notification_bytes_max: domain::Bytes::new(64 * 1024),
        ..TopologyLimits::default()
    };
    let broker = broker_with(limits).await;
    let messages: Vec<Outgoing> = (0..20)
        .map(|number| {
            message(
                "signalbox.notification.acme.t-1",
                &format!("n-{number}"),
                vec![b'x'; 8 * 1024],
            )
        })
        .collect();
    let results = broker.bus.publish_all(&messages).await;
    assert!(results[0].is_ok());
    let error = results[19].as_ref().unwrap_err();
    assert!(matches!(error.reason, Unpublished::NotStored(_)), "{error:?}");
    assert!(error.is_retryable());
    let state = stream_info(&broker.bus, Stream::Notification).await.state;
    assert_eq!(state.first_sequence, 1);
    assert_eq!(
        state.messages as usize,
        results.iter().filter(|result| result.is_ok()).count()
    );
}

#[tokio::test]
async fn without_an_answer_the_outcome_is_unknown_and_the_same_id_may_be_sent_again() {
    let mut broker = broker().await;
    let impatient = Bus::connect(BusOptions {
        publish_ack_timeout_ms: 200,
        ..options(&broker.server)
    })
    .await
    .unwrap();
    let wake_up = message("signalbox.session.resolved.acme.t-1", "s-1", "{}");
    broker.server.kill().await.unwrap();
    let error = only_error(&impatient, wake_up.clone()).await;
    assert!(matches!(error.reason, Unpublished::Unknown(_)), "{error:?}");
    assert!(error.is_retryable());

    broker.server.restart().await.unwrap();
    until("the message is acknowledged", async || {
        impatient.publish_all(std::slice::from_ref(&wake_up)).await[0]
            .is_ok()
            .then_some(())
    })
    .await;
    // The first one may have been sent when the connection came back or not: one is stored.
    until("connected again", async || broker.bus.is_connected().then_some(())).await;
    assert_eq!(stream_info(&broker.bus, Stream::Session).await.state.messages, 1);
}

#[tokio::test]
async fn live_text_reaches_listeners() {
    let broker = bare_broker().await;
    let mut page = broker.bus.client().subscribe("signalbox.live.acme.*").await.unwrap();
    broker.bus.client().flush().await.unwrap();
    broker
        .bus
        .publish_live(message("signalbox.live.acme.t-1", "live:1:1:0", "Hel"))
        .await;
    let received = within("live text", page.next()).await.unwrap();
    assert_eq!(received.payload, Bytes::from_static(b"Hel"));
    assert_eq!(
        received.headers.unwrap().get("Nats-Msg-Id").unwrap().as_str(),
        "live:1:1:0"
    );
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_waited_for_once_per_message() {
    let mut broker = broker().await;
    let impatient = Bus::connect(BusOptions {
        publish_ack_timeout_ms: 500,
        ..options(&broker.server)
    })
    .await
    .unwrap();
    broker.server.kill().await.unwrap();
    // Far more than the client buffers for an unavailable server.
    let messages: Vec<Outgoing> = (0..10_000)
        .map(|number| message("signalbox.session.resolved.acme.t-1", &format!("s-{number}"), "{}"))
        .collect();
    let results = within("an answer for each", impatient.publish_all(&messages)).await;
    assert_eq!(results.len(), messages.len());
    for (result, message) in results.iter().zip(&messages) {
        assert!(
            matches!(result, Err(error) if error.id == message.id() && matches!(error.reason, Unpublished::Unknown(_))),
            "{result:?}"
        );
    }
}
