//! Limits of concurrent turns, by account and in total, and the order of sessions.

use std::sync::Arc;

use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::scene::Scene;

#[tokio::test]
async fn an_account_s_limit_holds() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))).await;
    scene.world.set("delivery.turns_in_flight_account_max", 2);
    let fixture = scene.world.fixture();
    for n in 0..6 {
        let task = fixture.task(&scene.account, &format!("T-{n}"), &[]).await;
        let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
        fixture.enqueue(&scene.account, session, &format!("n-{n}"), "x").await;
    }
    let running = scene.run().await;
    eventually("two are in flight", || async {
        (scene.provider.seen().len() == 2).then_some(())
    })
    .await;
    gate.add_permits(1);
    eventually("one takes the place of the one that ended", || async {
        (scene.provider.seen().len() == 3).then_some(())
    })
    .await;
    assert_eq!(
        scene
            .world
            .database
            .count("select count(*) from turn where state = 'calling'")
            .await,
        2
    );
    gate.add_permits(10);
    eventually("all are delivered", || async {
        (scene
            .world
            .database
            .count("select count(*) from notification where state = 'delivered'")
            .await
            == 6)
            .then_some(())
    })
    .await;
    running.stop().await;
}

/// The limit is read with the account's first session, and holds over all processes.
#[tokio::test]
async fn an_account_s_own_limit_holds_from_the_first_turn_on_and_over_all_replicas() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))).await;
    scene.world.set("delivery.sweep_interval_ms", 100);
    let fixture = scene.world.fixture();
    fixture.account_set(&scene.account, "turns_in_flight_max", "1").await;
    for n in 0..4 {
        let task = fixture.task(&scene.account, &format!("T-{n}"), &[]).await;
        let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
        fixture.enqueue(&scene.account, session, &format!("n-{n}"), "x").await;
    }
    let (one, two) = (scene.run().await, scene.run().await);
    for n in 1..=4 {
        eventually("the next is in flight", || async {
            (scene.provider.seen().len() == n).then_some(())
        })
        .await;
        let calling = "select count(*) from turn where state = 'calling'";
        assert_eq!(scene.world.database.count(calling).await, 1);
        gate.add_permits(1);
    }
    scene.until("n-3", "delivered").await;
    one.stop().await;
    two.stop().await;
}

/// The sweep reads a few sessions at a time. Sessions that stay unchanged do not hide others: those of an account at
/// its limit, and one that closed while it waited for another attempt.
#[tokio::test]
async fn the_sweep_reaches_every_account() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |seen| {
        if seen.key.contains(":zeta:") {
            Reply::text("ok")
        } else {
            Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))
        }
    })
    .await;
    scene.world.set("delivery.sweep_interval_ms", 50);
    scene.world.set("delivery.sweep_sessions_max", 1);
    scene.world.set("delivery.turns_in_flight_account_max", 1);
    let fixture = scene.world.fixture();
    sqlx::query("update session set phase = 'backoff', wake_at = now(), closed_at = now(), close_reason = 'task_done'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    for n in 0..3 {
        let task = fixture.task(&scene.account, &format!("T-{n}"), &[]).await;
        let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
        fixture.enqueue(&scene.account, session, &format!("n-{n}"), "x").await;
    }
    let zeta = fixture.account("zeta").await;
    let agent = fixture.agent(&zeta, "coder").await;
    let task = fixture.task(&zeta, "T", &[]).await;
    let (session, _) = fixture.session(&zeta, &task, agent).await;
    fixture.enqueue(&zeta, session, "z-1", "x").await;
    let running = scene.run().await;
    scene.until("z-1", "delivered").await;
    gate.add_permits(3);
    scene.until("n-2", "delivered").await;
    running.stop().await;
}
