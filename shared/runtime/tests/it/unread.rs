//! Awaited messages survive the loss of the broker's store until they were read, and are published no more often than
//! necessary.

use contracts::{Headers, header};
use messaging::{Provision, Stream, Topology, User};
use runtime::Context;
use testkit::eventually;

use crate::world::{World, stored};

/// The unread sweep runs only when a test triggers it.
const WATCHFUL: &str = "[nats]\npublish_timeout_ms = 1000\n\
    [outbox]\nsweep_interval_ms = 20\nsweep_age_ms = 1000\nclaim_timeout_ms = 1000\nunread_look_ms = 3600000\n";

/// Headers of all notifications that the broker has.
async fn there(context: &Context) -> Vec<Headers> {
    let jetstream = async_nats::jetstream::new(context.bus.client().clone());
    let name = Stream::Notification.name(context.root());
    let mut stream = jetstream.get_stream(name).await.expect("a stream");
    let last = stream.info().await.expect("an answer").state.last_sequence;
    let mut all = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await.expect("a message");
        let mut headers = Headers::default();
        for name in [header::MESSAGE_ID, header::RECEIPT] {
            let value = message.headers.get(name).map(|value| value.as_str().to_owned());
            headers.set(name, value.unwrap_or_default());
        }
        all.push(headers);
    }
    all
}

/// A broker with empty streams, as the operator recreates them.
async fn wipe(world: &mut World, context: &Context) {
    world.nats.stop().await.expect("a stop");
    world.nats.wipe_store().await.expect("an empty store");
    world.nats.restart().await.expect("a start");
    let everybodys = Topology {
        scope: User::Operator,
        provision: Provision::Update,
        ..context.topology.clone()
    };
    eventually("the streams are made again", async || {
        everybodys.ensure(&context.bus).await.ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_awaited_row_stays_until_it_is_read_and_is_published_once() {
    let world = World::new().await;
    let context = world.context(WATCHFUL).await;
    let rows = world
        .commit(&context, vec![world.notification("n-1"), world.event("e-1", b"{}")])
        .await;
    context.outbox.publish_soon(rows);
    world.unread(1).await;
    // Sweeps run one after the other: two checks of these rows have certainly ended.
    for _ in 0..3 {
        world.look().await;
    }
    let there = there(&context).await;
    assert_eq!(
        there.len(),
        1,
        "the broker has the message, so it is not published again"
    );
    world.read(there).await;
    world.outbox_is_empty().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_lost_is_published_again_as_it_was_by_one_replica() {
    let mut world = World::new().await;
    let context = world.context(WATCHFUL).await;
    let other = world.context(WATCHFUL).await;
    let messages = (0..20).map(|n| world.notification(&format!("n-{n:02}"))).collect();
    let rows = world.commit(&context, messages).await;
    context.outbox.publish_soon(rows);
    world.unread(20).await;
    let before = there(&context).await;

    wipe(&mut world, &context).await;
    eventually("both are connected again", async || {
        (context.bus.is_connected() && other.bus.is_connected()).then_some(())
    })
    .await;
    world.look().await;
    stored(&context, Stream::Notification, 20).await;
    world.unread(20).await;
    for _ in 0..3 {
        world.look().await;
    }
    let mut after = there(&context).await;
    after.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(
        after, before,
        "each of them again, with its id and its receipt, and none twice"
    );
    world.read(after).await;
    world.outbox_is_empty().await;
    world.stop().await;
}

/// A broker whose tail was lost and rewritten has another message at the stored sequence.
#[tokio::test(flavor = "multi_thread")]
async fn another_message_at_its_place_does_not_hide_a_lost_one() {
    let mut world = World::new().await;
    let context = world.context(WATCHFUL).await;
    let rows = world.commit(&context, vec![world.notification("n-1")]).await;
    context.outbox.publish_soon(rows);
    world.unread(1).await;
    wipe(&mut world, &context).await;
    let stranger = world.notification("n-1");
    eventually("another message takes its sequence", async || {
        context.bus.publish_all(std::slice::from_ref(&stranger)).await[0]
            .is_ok()
            .then_some(())
    })
    .await;
    world.look().await;
    stored(&context, Stream::Notification, 2).await;
    let there = there(&context).await;
    assert_eq!(there[0].get(header::RECEIPT), None);
    assert!(there[1].get(header::RECEIPT).is_some());
    world.read(there).await;
    world.outbox_is_empty().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_message_is_published_again_and_buried_at_last() {
    let world = World::new().await;
    let context = world.context(WATCHFUL).await;
    let rows = world.commit(&context, vec![world.notification("n-1")]).await;
    context.outbox.publish_soon(rows);
    world.unread(1).await;

    let long_ago = "update outbox set stored_at = now() - interval '2 hours', look_at = now()";
    sqlx::query(long_ago).execute(&world.database.owner).await.unwrap();
    stored(&context, Stream::Notification, 2).await;
    let there = there(&context).await;
    assert_eq!(there[0], there[1]);

    eventually("the message is marked as stored", async || {
        let fresh = "select count(*) from outbox where stored_at > now() - interval '1 hour'";
        (world.database.count(fresh).await == 1).then_some(())
    })
    .await;
    let too_long_ago = "update outbox set created_at = now() - interval '15 days', look_at = now()";
    sqlx::query(too_long_ago).execute(&world.database.owner).await.unwrap();
    world.outbox_is_empty().await;
    let letters = "select account_id || ' ' || reason || ' ' || subject from dead_letter";
    assert_eq!(
        world.database.texts(letters).await,
        ["acme unread signalbox.notification.acme.-"]
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_read_at_once_is_never_updated() {
    let world = World::new().await;
    let context = world.context(WATCHFUL).await;
    let rows = world.commit(&context, vec![world.notification("n-1")]).await;
    let headers: Vec<Headers> = rows.iter().map(|row| row.messages[0].headers.clone()).collect();
    context.outbox.publish_soon(rows);
    stored(&context, Stream::Notification, 1).await;
    world.read(headers).await;
    // An orderly stop: the relay's pending settlements are written before, and there are no rows left to mark.
    world.stop().await;
    assert_eq!(world.database.count("select count(*) from outbox").await, 0);
    assert_eq!(there(&context).await.len(), 1);
}
