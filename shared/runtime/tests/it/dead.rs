//! An undeliverable message: a row, a message on the dead subject and an event, once however often it is buried.

use bytes::Bytes;
use contracts::{Headers, header};
use messaging::{DeadLetterSink, DeadMessage, Incoming, Stream};
use runtime::Context;
use time::OffsetDateTime;

use crate::world::{World, stored};

async fn messages_in(context: &Context, stream: Stream) -> u64 {
    let jetstream = async_nats::jetstream::new(context.bus.client().clone());
    let stream = jetstream.get_stream(stream.name(context.root())).await.unwrap();
    stream.cached_info().state.messages
}

fn dead(subject: &str) -> DeadMessage {
    let mut headers = Headers::default();
    headers.set(header::MESSAGE_ID, "m-1");
    headers.set(
        header::TRACEPARENT,
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    DeadMessage {
        incoming: Incoming {
            subject: subject.to_owned(),
            headers,
            payload: Bytes::from_static(b"not json \0 \xff"),
            stream_sequence: 7,
            deliveries: 3,
            published: OffsetDateTime::UNIX_EPOCH,
        },
        reason: "malformed".to_owned(),
        detail: "It is not JSON.".to_owned(),
        attempts: 3,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_message_is_the_operators_whatever_its_subject() {
    let world = World::new().await;
    let context = world.context("").await;
    let forged = DeadMessage {
        reason: messaging::UNAUTHENTICATED.to_owned(),
        ..dead("signalbox.tool.requested.acme.PROJ-7")
    };
    context.dead_letters().bury(forged).await.unwrap();
    assert_eq!(world.database.texts("select account_id from dead_letter").await, ["-"]);
    world.outbox_is_empty().await;
    assert_eq!(stored(&context, Stream::Dead, 1).await[0].0, "signalbox.dead.-.-");
    assert_eq!(messages_in(&context, Stream::Event).await, 0, "no account is told");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buries_a_message_once() {
    let world = World::new().await;
    let context = world.context("").await;
    let letters = context.dead_letters();
    for _ in 0..2 {
        letters
            .bury(dead("signalbox.tool.requested.acme.PROJ-7"))
            .await
            .unwrap();
    }
    assert_eq!(
        world
            .database
            .texts("select concat_ws(' ', account_id, service, reason, attempts, payload) from dead_letter")
            .await,
        ["acme orchestrator malformed 3 not json \u{fffd} \u{fffd}"]
    );
    world.outbox_is_empty().await;
    let announced = stored(&context, Stream::Dead, 1).await;
    assert_eq!(announced[0].0, "signalbox.dead.acme.PROJ-7");
    let event = stored(&context, Stream::Event, 1).await;
    assert_eq!(event[0].0, "signalbox.event.acme.PROJ-7.message.died");
    let event: serde_json::Value = serde_json::from_slice(&event[0].2).unwrap();
    assert_eq!(event["data"]["reason"], "malformed");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_an_account_is_the_operators() {
    let world = World::new().await;
    let context = world.context("").await;
    let letters = context.dead_letters();
    letters.bury(dead("signalbox.session.resolved.nobody.t")).await.unwrap();
    letters.bury(dead("signalbox.session.closed.NOBODY.t")).await.unwrap();
    assert_eq!(
        world
            .database
            .texts("select account_id || ' ' || subject from dead_letter order by subject")
            .await,
        [
            "- signalbox.session.closed.NOBODY.t",
            "- signalbox.session.resolved.nobody.t"
        ]
    );
    world.outbox_is_empty().await;
    let announced = stored(&context, Stream::Dead, 2).await;
    assert!(announced.iter().all(|(subject, _, _)| subject == "signalbox.dead.-.-"));
    world.stop().await;
}

/// A dead message counts as read: its publisher's outbox row is deleted, so it is not published again.
#[tokio::test(flavor = "multi_thread")]
async fn a_buried_message_keeps_no_row() {
    let world = World::new().await;
    let context = world.context("").await;
    let notification = world.notification("n-1");
    let mut message = dead(&notification.subject);
    let rows = world.commit(&context, vec![notification]).await;
    message.incoming.headers = rows[0].messages[0].headers.clone();
    context.outbox.publish_soon(rows);
    world.unread(1).await;
    context.dead_letters().bury(message).await.unwrap();
    world.outbox_is_empty().await;
    assert_eq!(world.database.count("select count(*) from dead_letter").await, 1);
    world.stop().await;
}
