//! The sweeps delete expired rows, and no others.

use std::time::Duration;

use async_nats::jetstream;
use domain::Bytes;
use messaging::{Bus, BusOptions, Provision, Topology, TopologyLimits, User};
use resolver::sweeps::{closed_sessions_remove, consumed_notifications_purge, refused_notifications_remove};
use testkit::{Rows, rows};
use tokio_util::sync::CancellationToken;

use crate::{
    scene::{Scene, scene, to_coder},
    stream::stage,
};

#[tokio::test]
async fn expired_closed_sessions_are_deleted_except_the_newest() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    for round in 0..4 {
        reader.take(&[to_coder(&format!("n-{round}"), "b")]).await;
        scene.task_close(domain::TaskStatus::Cancelled).await;
    }
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    assert_eq!(
        closed_sessions_remove(&scene.database, month, 100, &stop)
            .await
            .unwrap(),
        0
    );
    // Three are old: the first two, and the newest, of which only the row stays, since it carries the number.
    scene
        .execute("update session set closed_at = closed_at - interval '40 days' where generation <> 3")
        .await;
    // Repeats until nothing is left, for any page size.
    assert_eq!(
        closed_sessions_remove(&scene.database, month, 1, &stop).await.unwrap(),
        3
    );
    assert_eq!(
        closed_sessions_remove(&scene.database, month, 100, &stop)
            .await
            .unwrap(),
        0
    );
    let left = scene
        .test
        .texts("select generation::text from session order by generation")
        .await;
    assert_eq!(left, ["3", "4"]);
    let left = scene.test.texts("select id from notification order by id").await;
    assert_eq!(left, ["n-2"]);
    // The generation numbers continue.
    let committed = reader.take(&[to_coder("n-4", "b")]).await;
    assert_eq!(committed.resolutions[0].generation.0, 5);
    // The row that was the newest when it was emptied is deleted with its successor.
    scene.task_close(domain::TaskStatus::Cancelled).await;
    scene
        .execute("update session set closed_at = closed_at - interval '40 days'")
        .await;
    assert_eq!(
        closed_sessions_remove(&scene.database, month, 1, &stop).await.unwrap(),
        2
    );
    let left = scene.test.texts("select generation::text from session").await;
    assert_eq!(left, ["5"]);
}

/// Each kind has its own columns.
#[tokio::test]
async fn sessions_of_every_kind_are_deleted_except_the_newest() {
    let scene = scene().await;
    let closed = old_sessions("agent a, generate_series(1, 3) g where a.slug = 'coder'").with("queue_tail", 7);
    for sessions in [
        closed.clone(),
        closed
            .clone()
            .with("kind", "orchestrator")
            .set("key", "concat('orchestrator:org:acme:v', g)"),
        closed
            .with("kind", "orchestrator")
            .with("user_id", "u-1")
            .set("key", "concat('orchestrator:acme:u-1:v', g)"),
    ] {
        sessions.insert(&scene.test.owner).await;
    }
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    assert_eq!(
        closed_sessions_remove(&scene.database, month, 2, &stop).await.unwrap(),
        9
    );
    let left = "select concat_ws(' ', kind, user_id, generation, queue_tail) from session order by 1";
    assert_eq!(
        scene.test.texts(left).await,
        ["orchestrator 3 0", "orchestrator u-1 3 0", "system 3 0"]
    );
}

/// A replay has one generation.
#[tokio::test]
async fn replays_are_deleted_with_their_sessions() {
    let scene = scene().await;
    let replay = uuid::Uuid::from_u128(7);
    let agent = "agent a where a.slug = 'coder'";
    let session = old_sessions(agent).with("kind", "replay").with("origin_id", replay);
    let session = session
        .with("generation", 1)
        .with("key", format!("replay:{replay}:acme:v1"));
    session.insert(&scene.test.owner).await;
    let of = "session s";
    for id in [replay, uuid::Uuid::from_u128(8)] {
        let row = rows("replay").with("id", id).set("account_id", "s.account_id");
        row.set("source_turn_id", "s.id")
            .from(of)
            .insert(&scene.test.owner)
            .await;
    }
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    assert_eq!(
        closed_sessions_remove(&scene.database, month, 100, &stop)
            .await
            .unwrap(),
        1
    );
    let left = "select id::text from session union all select id::text from replay";
    let other = uuid::Uuid::from_u128(8).to_string();
    assert_eq!(scene.test.texts(left).await, [other]);
}

/// One session has more rows than one transaction deletes: they are deleted in parts, and the next session does not
/// wait. Two replicas share the work, and skip each other's locked rows.
#[tokio::test]
async fn a_large_session_is_deleted_in_parts() {
    let scene = scene().await;
    large(&scene, 12_000).await;
    scene.execute(BOUNDED).await;
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    let remove = || closed_sessions_remove(&scene.database, month, 100, &stop);
    let mut other = scene.test.owner.begin().await.unwrap();
    sqlx::query("select 1 from session where generation = 2 for update")
        .execute(&mut *other)
        .await
        .unwrap();
    assert_eq!(remove().await.unwrap(), 1, "one is locked by another replica");
    other.rollback().await.unwrap();
    let (one, two) = tokio::join!(remove(), remove());
    assert_eq!(one.unwrap() + two.unwrap(), 1);
    let left = "select concat_ws(' ', (select count(*) from session), (select count(*) from notification))";
    assert_eq!(scene.test.texts(left).await, ["1 0"]);
}

/// No statement deletes more rows than one part has.
const BOUNDED: &str = "
    create function bounded() returns trigger language plpgsql as $$ begin
        if (select count(*) from gone) > 5000 then raise 'more than a piece at once'; end if; return null;
    end $$;
    create trigger bounded after delete on notification referencing old table as gone
        for each statement execute function bounded()";

/// Closed sessions, of each generation `g` of an agent `a`.
fn old_sessions(from: &str) -> Rows {
    let closed = rows("session").set("closed_at", "now() - interval '40 days'");
    closed.set("generation", "g").from(from)
}

/// Two closed sessions, the first one with `count` notifications.
async fn large(scene: &Scene, count: u32) {
    let sessions = old_sessions("agent a, generate_series(1, 2) g where a.slug = 'coder'").with("queue_tail", 7);
    let sessions = sessions.set("id", "('00000000-0000-0000-0000-00000000000' || g)::uuid");
    let notifications = rows("notification")
        .set("id", "concat_ws('-', s.generation, n)")
        .set("position", "n");
    let notifications = notifications.with("state", "delivered");
    for rows in [
        sessions,
        notifications.from(format!(
            "session s, generate_series(1, {count}) n where n <= 10 or s.generation = 1"
        )),
    ] {
        rows.insert(&scene.test.owner).await;
    }
}

/// A call arrived for a session that was emptied already, and that is deleted now since it has a successor.
#[tokio::test]
async fn a_late_call_is_deleted_with_its_session() {
    let scene = scene().await;
    generations(&scene).await;
    scene
        .execute("update session set emptied_at = now() where generation = 1")
        .await;
    let late = rows("tool_call").with("state", "refused");
    let late = late.from("session s where s.account_id = 'acme' and s.generation = 1");
    late.insert(&scene.test.owner).await;
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    let removed = closed_sessions_remove(&scene.database, month, 100, &stop).await;
    assert_eq!(removed.unwrap(), 4);
    let left =
        "select concat_ws(' ', account_id, generation, (select count(*) from tool_call)) from session order by 1";
    assert_eq!(
        scene.test.texts(left).await,
        ["acme 2 0", "acme 2 0", "beta 2 0", "beta 2 0"]
    );
}

/// The session stays, and all others are deleted.
#[tokio::test]
async fn a_session_that_cannot_be_deleted_does_not_block_the_others() {
    let scene = scene().await;
    generations(&scene).await;
    scene
        .execute(
            "update session s set key = 'stuck' from agent a
             where a.id = s.agent_id and a.account_id = 'acme' and a.slug = 'coder' and s.generation = 1;
             create function refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$;
             create trigger refuse before delete on session for each row when (old.key = 'stuck') execute function refuse()",
        )
        .await;
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    assert!(
        closed_sessions_remove(&scene.database, month, 100, &stop)
            .await
            .is_err(),
        "it is said"
    );
    let left = "select concat_ws(' ', s.account_id, a.slug, s.generation, s.emptied_at is not null)
                from session s join agent a on a.id = s.agent_id order by 1";
    assert_eq!(
        scene.test.texts(left).await,
        [
            "acme coder 1 f",
            "acme coder 2 t",
            "acme reviewer 2 t",
            "beta coder 2 t",
            "beta reviewer 2 t"
        ]
    );
}

/// Two closed generations of two agents in two accounts.
async fn generations(scene: &Scene) {
    let beta = scene.fixture().account("beta").await;
    for slug in ["coder", "reviewer"] {
        scene.fixture().agent(&beta, slug).await;
    }
    let sessions = old_sessions("agent a, generate_series(1, 2) g");
    let sessions = sessions.set("closed_at", "now() - interval '50 days' + g * interval '1 day'");
    sessions.insert(&scene.test.owner).await;
}

/// `count` refused notifications of each account.
async fn refused(scene: &Scene, count: u32, created_at: &str) {
    let refused = rows("notification")
        .set("account_id", "a.id")
        .set("id", "'n-' || n")
        .set("created_at", created_at);
    let refused = refused.from(format!("account a, generate_series(1, {count}) n"));
    refused.insert(&scene.test.owner).await;
}

/// The database fails statements of more than three rows: each sweep finishes in smaller parts.
#[tokio::test]
async fn oversized_deletes_are_split() {
    let scene = scene().await;
    scene
        .execute(
            "create function few() returns trigger language plpgsql as $$
             begin
                 if (select count(*) from gone) > 3 then
                     raise 'too much' using errcode = '57014';
                 end if;
                 return null;
             end $$;
             create trigger few after delete on notification referencing old table as gone for each statement
                 execute function few()",
        )
        .await;
    refused(&scene, 20, "now() - interval '40 days'").await;
    large(&scene, 40).await;
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    assert_eq!(
        refused_notifications_remove(&scene.database, month, 100, &stop)
            .await
            .unwrap(),
        20
    );
    assert_eq!(
        closed_sessions_remove(&scene.database, month, 100, &stop)
            .await
            .unwrap(),
        2
    );
    let left = "select concat_ws(' ', (select count(*) from session), (select count(*) from notification))";
    assert_eq!(scene.test.texts(left).await, ["1 0"]);
}

/// For any size of an account: a deleted row is read a few times, and a kept row hardly ever. The test counts rows,
/// since durations prove nothing.
#[tokio::test]
async fn a_sweep_reads_what_it_removes_and_little_else() {
    const REMOVED: i64 = 2_000;
    let scene = scene().await;
    old(&scene).await;
    let before = scene.test.count(READ).await;
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    let removed = closed_sessions_remove(&scene.database, month, 20, &stop).await;
    assert_eq!(removed.unwrap(), REMOVED.cast_unsigned());
    scene.database.close().await;
    // A backend reports its statistics when it ends.
    testkit::eventually("the service's backends have ended", async || {
        let backends = "select count(*) from pg_stat_activity
                        where datname = current_database() and application_name = 'signalbox-resolver'";
        (scene.test.count(backends).await == 0).then_some(())
    })
    .await;
    let read = scene.test.count(READ).await - before;
    assert!(read < 50 * REMOVED, "{read} rows were read");
}

/// Two generations of each of a thousand sessions, and one session with many rows that stay.
async fn old(scene: &Scene) {
    let pairs = "agent a, generate_series(1, 1000) n, generate_series(1, 2) g where a.slug = 'coder'";
    let old = old_sessions(pairs).set("closed_at", "now() - interval '40 days' + n * interval '1 s'");
    for rows in [
        rows("task")
            .set("display_id", "'OLD-' || n")
            .with("status", "done")
            .from("generate_series(1, 1000) n"),
        old.set("task_id", "'old-' || n"),
        rows("session").from("agent a where a.slug = 'coder'"),
        rows("notification")
            .set("id", "'n-' || n")
            .set("position", "n")
            .with("state", "delivered")
            .from("session s, generate_series(1, 3000) n where s.closed_at is null"),
    ] {
        rows.insert(&scene.test.owner).await;
    }
}
const READ: &str = "
    select (sum(t.seq_tup_read)
            + (select sum(i.idx_tup_read) from pg_stat_user_indexes i where i.relname in ('session', 'notification')))::bigint
    from pg_stat_user_tables t where t.relname in ('session', 'notification')";

/// One account's refused notifications cannot be deleted; the others' are, and the failure is reported.
#[tokio::test]
async fn a_failure_for_one_account_does_not_stop_the_next() {
    let scene = scene().await;
    scene.fixture().account("beta").await;
    refused(&scene, 5, "now() - interval '40 days' + n * interval '1 s'").await;
    scene
        .execute(
            "create function refuse() returns trigger language plpgsql as $$ begin raise 'not this one'; end $$;
             create trigger refuse before delete on notification for each row when (old.account_id = 'acme')
                 execute function refuse()",
        )
        .await;
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    assert!(
        refused_notifications_remove(&scene.database, month, 2, &stop)
            .await
            .is_err()
    );
    assert_eq!(
        scene.test.texts("select distinct account_id from notification").await,
        ["acme"]
    );
}

#[tokio::test]
async fn only_expired_refused_notifications_are_deleted() {
    let scene = scene().await;
    let mut reader = scene.reader().await;
    reader.take(&[to_coder("n-1", "b"), to_coder("n-2", "b")]).await;
    for (id, days) in [("old-1", 40), ("old-2", 31), ("new", 29)] {
        let row = rows("notification")
            .with("id", id)
            .set("created_at", format!("now() - interval '{days} days'"));
        row.insert(&scene.test.owner).await;
    }
    scene
        .execute("update notification set created_at = now() - interval '50 days' where id = 'n-1'")
        .await;
    let (month, stop) = (Duration::from_secs(30 * 24 * 60 * 60), CancellationToken::new());
    let left = "select id from notification order by id";
    // Repeats until nothing is left, for any page size.
    let removed = refused_notifications_remove(&scene.database, month, 1, &stop)
        .await
        .unwrap();
    assert_eq!(removed, 2);
    assert_eq!(scene.test.texts(left).await, ["n-1", "n-2", "new"]);
}

#[tokio::test]
async fn the_stream_is_purged_up_to_what_was_read() {
    let stage = stage().await;
    let running = stage.resolver().await;
    // One task: seven partitions stay quiet and do not block the purge.
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
    // The message at the offset stays as well: it proves that the stream is the one that was read.
    assert_eq!(consumed_notifications_purge(&database, &bus, 0).await.unwrap(), 10);
    assert_eq!(messages().await, 11);
    assert_eq!(consumed_notifications_purge(&database, &bus, 0).await.unwrap(), 0);

    // Unread messages are read.
    let running = stage.resolver().await;
    stage.until_count("read", queued, 40).await;
    running.stop().await;
}

/// Publishes three times the stream's size, as fast as possible, with a setting that would keep all messages by number.
#[tokio::test]
async fn a_full_stream_keeps_no_read_messages() {
    let mut stage = stage().await;
    let limits = TopologyLimits {
        notification_bytes_max: Bytes::new(64 * 1024),
        message_bytes_max: Bytes::new(4 * 1024),
        ..TopologyLimits::default()
    };
    stage.world.set(
        "nats.limits.notification_bytes_max",
        limits.notification_bytes_max.get(),
    );
    stage
        .world
        .set("nats.limits.message_bytes_max", limits.message_bytes_max.get());
    let options = BusOptions::new(stage.world.nats.url(), contracts::Root::default(), "test");
    let narrow = Topology {
        limits,
        provision: Provision::Update,
        scope: User::Operator,
    };
    narrow.ensure(&Bus::connect(options).await.unwrap()).await.unwrap();
    let running = stage.resolver().await;
    let body = "x".repeat(2_500);
    for n in 0..75 {
        // Retries while the stream is full.
        stage.publish("T-1", &format!("n-{n:02}"), &body).await;
    }
    stage
        .until_count("read", "select count(*) from notification where state = 'queued'", 75)
        .await;
    running.stop().await;
}
