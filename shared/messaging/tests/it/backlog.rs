//! The broker's backlog, as the service's own user sees it.

use messaging::{Durable, Stream, TopologyLimits, User, consumer_backlogs, stream_fills};

use crate::support::{broker, message, publish, until};

#[tokio::test]
async fn says_what_waits_and_how_full_it_is() {
    let broker = broker().await;
    let before = stream_fills(&broker.bus, User::Delivery).await.unwrap();
    let messages: Vec<_> = (0..3)
        .map(|number| message("signalbox.session.resolved.acme.t-1", &format!("m-{number}"), "{}"))
        .collect();
    publish(&broker.bus, &messages).await;

    let expected = [
        (Durable::of(User::Delivery, "session.resolved"), 3, 0),
        (Durable::of(User::Delivery, "session.closed"), 0, 0),
        (Durable::of(User::Delivery, "session.stop_requested"), 0, 0),
        (Durable::of(User::Delivery, "tool.finished"), 0, 0),
    ];
    // The server updates a consumer's counters a moment after it has stored a message.
    until("what was published waits", async || {
        let backlogs = consumer_backlogs(&broker.bus, User::Delivery).await.unwrap();
        let pending = backlogs.iter().map(|one| (one.durable, one.pending, one.unsettled));
        pending.eq(expected).then_some(())
    })
    .await;
    let fills = stream_fills(&broker.bus, User::Delivery).await.unwrap();
    assert_eq!(fills[0].stream, Stream::Session);
    assert!(fills[0].bytes > before[0].bytes, "{fills:?}");
    let max = TopologyLimits::default().session_bytes_max;
    assert_eq!(fills[0].bytes_max, Some(max.get()));
    assert!(consumer_backlogs(&broker.bus, User::Resolver).await.unwrap().is_empty());
}
