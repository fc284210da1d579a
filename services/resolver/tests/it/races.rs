//! Concurrent transactions: resolvers with each other, and with closing sessions.

use std::sync::Arc;

use resolver::handlers::notification::Handled;
use serde_json::json;
use testkit::rows;
use tokio::task::JoinSet;

use crate::scene::{Message, message, scene, to_coder};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_resolvers_open_one_session() {
    let scene = Arc::new(scene().await);
    scene
        .fixture()
        .account_set(&scene.account, "session_scope", "agent")
        .await;
    for round in 0..10 {
        let mut readers = JoinSet::new();
        for n in 0..4 {
            let mut reader = scene.reader().await;
            readers.spawn(async move {
                let tasks = ["PROJ-7", "proj-7", "OTHER", "-"];
                let payload = json!({"id": format!("{round}-{n}"), "agent": "coder", "body": "b"});
                reader.take(&[message("acme", tasks[n], &payload)]).await;
                reader
            });
        }
        let done = readers.join_all().await;
        for reader in done {
            resolver::store::partitions::partition_release(&scene.database, &reader.lease)
                .await
                .unwrap();
        }
        scene.check().await;
        let open = scene
            .test
            .count("select count(*) from session where closed_at is null")
            .await;
        assert_eq!(open, 1);
        assert_eq!(scene.test.count("select count(*) from session").await, round + 1);
        scene
            .execute(
                "update notification set state = 'delivered';
                 update session set closed_at = now(), close_reason = 'reset', queued = 0 where closed_at is null",
            )
            .await;
    }
    assert_eq!(scene.test.count("select count(*) from notification").await, 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_id_published_to_two_tasks_is_accepted_once() {
    let scene = Arc::new(scene().await);
    let (mut one, mut other) = (scene.reader().await, scene.reader().await);
    for round in 0..20 {
        let of = |task: &str| -> Message {
            message(
                "acme",
                task,
                &json!({"id": format!("n-{round}"), "agent": "coder", "body": "b"}),
            )
        };
        let (first, second) = ([of("PROJ-7")], [of("OTHER")]);
        let (one, other) = tokio::join!(one.take(&first), other.take(&second));
        assert_eq!(one.resolutions.len() + other.resolutions.len(), 1);
        assert_eq!(one.refusals.len() + other.refusals.len(), 1);
    }
    scene.check().await;
}

/// Closing locks sessions and decides their queued items; a resolver locks sessions and adds items. The later
/// transaction sees the earlier one's result: no item is queued in a closed session.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_item_is_queued_in_a_closed_session() {
    let scene = Arc::new(scene().await);
    let mut reader = scene.reader().await;
    let resolving = tokio::spawn(async move {
        for round in 0..60 {
            reader.take(&[to_coder(&format!("n-{round}"), "b")]).await;
        }
    });
    let closing = {
        let scene = Arc::clone(&scene);
        tokio::spawn(async move {
            for _ in 0..30 {
                scene.task_close(domain::TaskStatus::Cancelled).await;
            }
        })
    };
    resolving.await.unwrap();
    closing.await.unwrap();
    scene.check().await;
    let states = scene
        .test
        .count("select count(*) from notification where state in ('queued', 'cancelled')")
        .await;
    assert_eq!(states, 60);
}

/// Every transaction that locks several sessions locks them by account and id, whatever their kind. So the holder of
/// the first lock can take the rest, and two transactions cannot deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_locked_in_one_order() {
    let scene = scene().await;
    let fixture = scene.fixture();
    let zeta = fixture.account("zeta").await;
    let other = fixture.agent(&zeta, "coder").await;
    let other_task = fixture.task(&zeta, "PROJ-7", &[]).await;
    // Created in an order that differs from every kind and account.
    fixture.session(&zeta, &other_task, other).await;
    let system = uuid::Uuid::now_v7();
    let row = rows("session").with("id", system).with("agent_id", scene.coder);
    row.insert(&scene.test.owner).await;
    fixture.session(&scene.account, &scene.task, scene.coder).await;

    let mut holder = scene.test.owner.begin().await.unwrap();
    sqlx::query("select id from session where id = $1 for no key update")
        .bind(system)
        .execute(&mut *holder)
        .await
        .unwrap();
    let mut reader = scene.reader().await;
    let resolving = tokio::spawn(async move {
        let of = |account: &str, task: &str| message(account, task, &json!({"agent": "coder", "body": "b"}));
        reader
            .take(&[of("zeta", "PROJ-7"), of("acme", "PROJ-7"), of("acme", "-")])
            .await
    });
    testkit::eventually("the resolver waits", || async {
        (scene
            .test
            .count(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
            .await
            == 1)
            .then_some(())
    })
    .await;
    sqlx::query("select id from session for no key update nowait")
        .execute(&mut *holder)
        .await
        .expect("the holder of the first lock can take all");
    holder.rollback().await.unwrap();
    assert_eq!(resolving.await.unwrap().resolutions.len(), 3);
    scene.check().await;
}

/// An agent is removed while sessions are opened for it: afterwards it has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_removed_agent_has_no_session() {
    for _ in 0..10 {
        let scene = Arc::new(scene().await);
        let mut reader = scene.reader().await;
        let coder = scene.coder;
        let resolving = tokio::spawn(async move {
            for round in 0..20 {
                let payload = json!({"id": format!("n-{round}"), "agent": coder, "body": "b"});
                reader
                    .take(&[
                        message("acme", &format!("T-{round}"), &payload),
                        to_coder(&format!("m-{round}"), "b"),
                    ])
                    .await;
            }
        });
        let removing = {
            let scene = Arc::clone(&scene);
            tokio::spawn(async move { scene.agent_remove(coder).await })
        };
        resolving.await.unwrap();
        removing.await.unwrap();
        scene.check().await;
        assert_eq!(
            scene
                .test
                .count("select count(*) from session where closed_at is null")
                .await,
            0
        );
        assert_eq!(
            scene
                .test
                .count("select count(*) from notification where state = 'queued'")
                .await,
            0
        );
    }
}

#[tokio::test]
async fn a_reader_that_was_replaced_changes_nothing() {
    let scene = scene().await;
    let mut old = scene.reader().await;
    old.take(&[to_coder("n-1", "b")]).await;
    // The lease has expired; another replica claims the partition.
    scene
        .execute("update replica set lease_until = now() - interval '1 second'")
        .await;
    let mut new = scene.reader().await;
    assert_eq!(new.lease.partition, old.lease.partition);
    assert_eq!(new.lease.fence, old.lease.fence + 1);

    let before = (scene.sessions().await, scene.outgoing().await);
    let handled = old
        .handle(&[to_coder("n-2", "b"), message("acme", "NEW", &json!({"body": "b"}))])
        .await;
    assert!(matches!(handled, Ok(Handled::Stale)));
    assert_eq!((scene.sessions().await, scene.outgoing().await), before);
    assert_eq!(scene.stored("n-2").await, None);
    let place = scene.test.count("select max(sequence) from resolver_partition").await;
    assert_eq!(place, 1);
    new.take(&[to_coder("n-2", "b")]).await;
    scene.check().await;
}
