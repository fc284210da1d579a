//! What is over is removed, and nothing else.

use std::time::Duration;

use async_nats::jetstream;
use messaging::{Bus, BusOptions};
use resolver::sweeps::{closed_sessions_remove, consumed_notifications_purge, refused_notifications_remove};

use crate::{
    scene::{scene, to_coder},
    stream::stage,
};

#[tokio::test]
async fn closed_sessions_go_when_their_time_is_over_but_for_the_newest() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    for round in 0..4 {
        reader.take(&[to_coder(&format!("n-{round}"), "b")]).await;
        scene.task_close(domain::TaskStatus::Cancelled).await;
    }
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    assert_eq!(closed_sessions_remove(&scene.database, month, 100).await.unwrap(), 0);
    // Three are old: the first two, and the newest, of which only the row stays, for its number.
    scene
        .execute("update session set closed_at = closed_at - interval '40 days' where generation <> 3")
        .await;
    assert_eq!(closed_sessions_remove(&scene.database, month, 1).await.unwrap(), 1);
    assert_eq!(closed_sessions_remove(&scene.database, month, 100).await.unwrap(), 2);
    assert_eq!(closed_sessions_remove(&scene.database, month, 100).await.unwrap(), 0);
    let left = scene
        .test
        .texts("select generation::text from session order by generation")
        .await;
    assert_eq!(left, ["3", "4"]);
    let left = scene.test.texts("select id from notification order by id").await;
    assert_eq!(left, ["n-2"]);
    // The number goes on.
    let committed = reader.take(&[to_coder("n-4", "b")]).await;
    assert_eq!(committed.resolutions[0].generation.0, 5);
}

#[tokio::test]
async fn refused_notifications_go_when_their_time_is_over_and_nothing_else() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("n-1", "b"), to_coder("n-2", "b")]).await;
    scene
        .execute(
            "insert into notification (account_id, id, kind, body, sender_kind, sender_id, sender_name, content_hash, state,
                                       created_at)
             select 'acme', r.id, 'k', 'b', 'user', 'u', 'u', '', 'refused', now() - r.days * interval '1 day'
             from (values ('old-1', 40), ('old-2', 31), ('new', 29)) as r (id, days);
             update notification set created_at = now() - interval '50 days' where id = 'n-1'",
        )
        .await;
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let removed = refused_notifications_remove(&scene.database, month, 1).await.unwrap();
    let left = "select id from notification order by id";
    assert_eq!(removed, 1);
    assert_eq!(
        scene.test.texts(left).await,
        ["n-1", "n-2", "new", "old-2"],
        "the oldest first"
    );
    let removed = refused_notifications_remove(&scene.database, month, 100).await.unwrap();
    assert_eq!(removed, 1);
    assert_eq!(scene.test.texts(left).await, ["n-1", "n-2", "new"]);
}

#[tokio::test]
async fn the_stream_is_purged_up_to_what_was_read() {
    let stage = stage().await;
    let running = stage.resolver().await;
    // One task: seven partitions stay quiet and hold nothing up.
    for n in 0..30 {
        stage.publish("T-1", &format!("n-{n}"), "b").await;
    }
    let queued = "select count(*) from notification where state = 'queued'";
    stage.until_count("read", queued, 30).await;
    running.stop().await;
    for n in 30..40 {
        stage.publish("T-1", &format!("n-{n}"), "b").await;
    }

    let database = stage.world.database.connect(storage::Role::Resolver).await;
    let bus = Bus::connect(BusOptions::new(
        stage.world.nats.url(),
        contracts::Root::default(),
        "test",
    ))
    .await
    .unwrap();
    let messages = || async {
        let stream = jetstream::new(stage.client.clone())
            .get_stream("SIGNALBOX_NOTIFICATION")
            .await
            .unwrap();
        stream.cached_info().state.messages
    };
    assert_eq!(consumed_notifications_purge(&database, &bus, 100).await.unwrap(), 0);
    assert_eq!(consumed_notifications_purge(&database, &bus, 10).await.unwrap(), 19);
    assert_eq!(messages().await, 21);
    // The message at the place stays as well: it proves that the stream is the one that was read.
    assert_eq!(consumed_notifications_purge(&database, &bus, 0).await.unwrap(), 10);
    assert_eq!(messages().await, 11);
    assert_eq!(consumed_notifications_purge(&database, &bus, 0).await.unwrap(), 0);

    // What was not read is read.
    let running = stage.resolver().await;
    stage.until_count("read", queued, 40).await;
    running.stop().await;
}
