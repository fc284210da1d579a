//! Committed messages are published, once in the stream, whatever fails in between.

use domain::AccountId;
use messaging::Stream;
use storage::outbox::{
    Claim, outbox_claim, outbox_rows,
    unread::{UnreadCheck, outbox_look},
};

use crate::world::{World, stored};

/// Sweeps at once: for tests of the sweep.
const EAGER: &str = "[nats]\npublish_timeout_ms = 1000\n\
    [outbox]\nsweep_interval_ms = 20\nsweep_age_ms = 1000\nclaim_timeout_ms = 1000\n";
/// Never sweeps: for tests of the memory queue.
const LAZY: &str = "[outbox]\nsweep_interval_ms = 3600000\n";

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("m-{number:03}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_in_order_and_deletes() {
    let world = World::new().await;
    let context = world.context(LAZY).await;
    let ids = ids(300);
    for part in ids.chunks(7) {
        let messages = part.iter().map(|id| world.event(id, b"{}")).collect();
        let rows = world.commit(&context, messages).await;
        context.outbox.publish_soon(rows);
    }
    world.outbox_is_empty().await;
    let stored = stored(&context, Stream::Event, ids.len()).await;
    assert_eq!(
        stored.iter().map(|(_, id, _)| id).collect::<Vec<_>>(),
        ids.iter().collect::<Vec<_>>()
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sweeps_what_a_crash_left_and_only_its_own() {
    let world = World::new().await;
    let context = world.context(EAGER).await;
    let ids = ids(5);
    let messages = ids.iter().map(|id| world.event(id, b"{}")).collect();
    // Committed, and the process died before it handed the rows over.
    world.commit(&context, messages).await;
    sqlx_insert_of_another_service(&world).await;

    let stored = stored(&context, Stream::Event, ids.len()).await;
    assert_eq!(
        stored.iter().map(|(_, id, _)| id).collect::<Vec<_>>(),
        ids.iter().collect::<Vec<_>>()
    );
    testkit::eventually("only the other service's row is left", async || {
        (world.database.texts("select service from outbox").await == ["resolver"]).then_some(())
    })
    .await;
    world.stop().await;
}

async fn sqlx_insert_of_another_service(world: &World) {
    let insert = "insert into outbox (account_id, id, service, subject, headers, payload, created_at)
        values ('acme', gen_random_uuid(), 'resolver', 'signalbox.event.acme.-.test.foreign', '{}', '', now() - interval '1 hour')
        returning service";
    assert_eq!(world.database.texts(insert).await, ["resolver"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn survives_an_outage_of_the_broker() {
    let mut world = World::new().await;
    let context = world.context(EAGER).await;
    world.nats.kill().await.unwrap();
    let ids = ids(10);
    for id in &ids {
        let rows = world.commit(&context, vec![world.event(id, b"{}")]).await;
        context.outbox.publish_soon(rows);
    }
    world.nats.restart().await.unwrap();
    world.outbox_is_empty().await;
    let mut seen: Vec<String> = stored(&context, Stream::Event, ids.len())
        .await
        .into_iter()
        .map(|(_, id, _)| id)
        .collect();
    seen.sort();
    assert_eq!(seen, ids, "each of them, and none twice");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_overflow_the_queue_are_swept() {
    let world = World::new().await;
    let context = world.context(&format!("{EAGER}queue_messages_max = 2\n")).await;
    let mut rows = Vec::new();
    for id in ids(3) {
        rows.extend(world.commit(&context, vec![world.event(&id, b"{}")]).await);
    }
    context.outbox.publish_soon(rows);
    world.outbox_is_empty().await;
    assert_eq!(stored(&context, Stream::Event, 3).await.len(), 3);
    world.stop().await;
}

/// Rows hold up to 256 messages each: a batch is measured in messages, and the accounts take turns in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_account_delays_no_other() {
    let world = World::new().await;
    let context = world.context(LAZY).await;
    let flood = ids(20 * 256)
        .iter()
        .map(|id| (Some(world.account.clone()), world.event(id, b"{}")))
        .collect();
    let other: Option<AccountId> = Some("other".parse().unwrap());
    let mut rows = outbox_rows(flood);
    // A transaction each.
    for number in 0..100 {
        let message = world.event(&format!("of-another-{number}"), b"{}");
        rows.extend(outbox_rows(vec![(other.clone(), message)]));
    }
    context.outbox.publish_soon(rows);
    let stored = stored(&context, Stream::Event, 20 * 256 + 100).await;
    let place = stored.iter().position(|(_, id, _)| id == "of-another-99");
    assert!(place.is_some_and(|place| place <= 3 * 256 + 100), "{place:?}");
    world.stop().await;
}

/// A few large messages take as much room as thousands of small ones.
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_full_by_bytes_as_well() {
    let world = World::new().await;
    let context = world.context(LAZY).await;
    let body = vec![b'x'; 256 * 1024];
    let large = ids(300)
        .iter()
        .map(|id| (Some(world.account.clone()), world.event(id, &body)))
        .collect();
    context.outbox.publish_soon(outbox_rows(large));
    let small = world.commit(&context, vec![world.event("small", b"{}")]).await;
    context.outbox.publish_soon(small);
    let stored = stored(&context, Stream::Event, 1).await;
    assert_eq!(stored[0].1, "small", "the large ones are the sweep's");
    world.stop().await;
}

/// A sweep takes as many rows as fit into memory, and then takes the next ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_claims_no_more_than_it_can_hold() {
    let world = World::new().await;
    let context = world.context(LAZY).await;
    let body = vec![b'x'; 256 * 1024];
    let messages = ids(8).iter().map(|id| world.event(id, &body)).collect();
    world.commit(&context, messages).await;
    testkit::eventually("they are old enough", async || {
        (world
            .database
            .count("select count(*) from outbox where created_at < now() - interval '1 millisecond'")
            .await
            == 8)
            .then_some(())
    })
    .await;
    let claim = async |bytes_max: i64| {
        let claim = Claim {
            age_ms: 1,
            taken_ms: 3_600_000,
            rows_max: 256,
            bytes_max,
        };
        outbox_claim(&context.database, &claim).await.unwrap().len()
    };
    assert_eq!(claim(600 * 1024).await, 3, "the one that crosses the limit is the last");
    assert_eq!(claim(1).await, 1, "one always");
    assert_eq!(claim(i64::MAX).await, 4);

    let stored = "update outbox set stored_at = now(), stored_sequence = 1, look_at = now() - interval '1 s'";
    sqlx::query(stored).execute(&world.database.owner).await.unwrap();
    let look = async |bytes_max: i64| {
        const HOUR_MS: i64 = 3_600_000;
        let look = UnreadCheck {
            every_ms: HOUR_MS,
            again_ms: HOUR_MS,
            kept_ms: HOUR_MS,
            rows_max: 256,
            bytes_max,
        };
        outbox_look(&context.database, &look).await.unwrap().len()
    };
    assert_eq!(look(600 * 1024).await, 3);
    assert_eq!(look(i64::MAX).await, 5);
    world.stop().await;
}

/// Notifications are the oldest rows and their stream is full: all other messages are published nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn notifications_that_are_refused_keep_nothing_else_waiting() {
    let world = World::new().await;
    let context = world
        .context(&format!(
            "{EAGER}batch_messages_max = 2\n[nats.limits]\nmessage_bytes_max = 1000\nnotification_bytes_max = 16000\n"
        ))
        .await;
    let refused = ids(400).iter().map(|id| world.notification(id)).collect();
    world.commit(&context, refused).await;
    let oldest = "update outbox set created_at = now() - interval '1 hour'";
    sqlx::query(oldest).execute(&world.database.owner).await.unwrap();
    world.commit(&context, vec![world.event("other", b"{}")]).await;
    let stored = stored(&context, Stream::Event, 1).await;
    assert_eq!(stored[0].1, "other");
    let waiting = world
        .database
        .count("select count(*) from outbox where stored_at is null")
        .await;
    assert!(waiting > 100, "{waiting}: the stream has room for a few only");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_be_published_becomes_a_dead_letter_once() {
    let world = World::new().await;
    let context = world.context(EAGER).await;
    let huge = vec![b'x'; 2 * 1024 * 1024];
    let rows = world
        .commit(&context, vec![world.event("huge", &huge), world.event("after", b"{}")])
        .await;
    context.outbox.publish_soon(rows);
    world.outbox_is_empty().await;
    assert_eq!(
        world
            .database
            .texts("select account_id || ' ' || reason from dead_letter")
            .await,
        ["acme unpublishable"]
    );
    let dead = stored(&context, Stream::Dead, 1).await;
    assert_eq!(dead[0].0, "signalbox.dead.acme.-");
    let events = stored(&context, Stream::Event, 2).await;
    assert_eq!(events[0].1, "after", "its neighbour is not held up");
    assert_eq!(events[1].0, "signalbox.event.acme.-.message.died");
    world.stop().await;
}

/// A row of several messages is over with the last of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_can_never_be_published_keeps_none_of_its_row() {
    let world = World::new().await;
    let context = world.context(EAGER).await;
    let mut broken = world.event("broken", b"{}");
    broken.headers.set("ce-extra", "two\r\nlines");
    let messages = vec![world.event("before", b"{}"), broken, world.event("after", b"{}")];
    let rows = world.commit(&context, messages).await;
    assert_eq!(rows.len(), 1);
    context.outbox.publish_soon(rows);
    world.outbox_is_empty().await;
    let letters = "select subject || ' ' || reason from dead_letter";
    assert_eq!(
        world.database.texts(letters).await,
        ["signalbox.event.acme.-.task.created unpublishable"]
    );
    let events = stored(&context, Stream::Event, 3).await;
    let ids: Vec<&str> = events.iter().map(|(_, id, _)| &**id).collect();
    assert_eq!(ids[..2], ["before", "after"]);
    assert_eq!(events[2].0, "signalbox.event.acme.-.message.died");
    world.stop().await;
}

/// Left by a version that packs rows otherwise: it waits for that version, and nothing waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_another_version_stays_and_holds_nothing_up() {
    let world = World::new().await;
    let context = world.context(EAGER).await;
    world
        .commit(&context, vec![world.event("one", b"{}"), world.event("two", b"{}")])
        .await;
    let newer = "update outbox set payload = '\\x02', created_at = now() - interval '1 hour'";
    sqlx::query(newer).execute(&world.database.owner).await.unwrap();
    world.commit(&context, vec![world.event("three", b"{}")]).await;
    assert_eq!(stored(&context, Stream::Event, 1).await[0].1, "three");
    testkit::eventually("only the row of another version is left", async || {
        (world.database.texts("select encode(payload, 'hex') from outbox").await == ["02"]).then_some(())
    })
    .await;
    world.stop().await;
}

/// A service that commits and is then told to stop: its rows are still published.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_publishes_the_queued_rows() {
    let world = World::new().await;
    let context = world.context(LAZY).await;
    let messages = ids(200).iter().map(|id| world.event(id, b"{}")).collect();
    let rows = world.commit(&context, messages).await;
    context.outbox.publish_soon(rows);
    world.stop().await;
    assert_eq!(world.database.count("select count(*) from outbox").await, 0);
    assert_eq!(stored(&context, Stream::Event, 200).await.len(), 200);
}
