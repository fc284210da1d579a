//! A session that another transaction has locked, and a database that is slow for all: others continue, and no answer
//! is lost.

use std::sync::Arc;

use domain::SessionId;
use sqlx::{Postgres, Transaction};
use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::scene::Scene;

async fn gated() -> (Scene, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("ok")))).await;
    scene.world.set("database.lock_timeout_ms", 120_000);
    (scene, gate)
}

/// A session of another task, with a notification.
async fn another(scene: &Scene) {
    let fixture = scene.world.fixture();
    let task = fixture.task(&scene.account, "OTHER-1", &[scene.agent]).await;
    let (session, _) = fixture.session(&scene.account, &task, scene.agent).await;
    fixture.enqueue(&scene.account, session, "other", "x").await;
}

async fn locked(scene: &Scene, session: SessionId) -> Transaction<'static, Postgres> {
    let mut held = scene.world.database.owner.begin().await.unwrap();
    sqlx::query("select from session where id = $1 for no key update")
        .bind(session.0)
        .execute(&mut *held)
        .await
        .unwrap();
    held
}

#[tokio::test]
async fn a_locked_session_does_not_block_other_claims() {
    let (scene, gate) = gated().await;
    gate.add_permits(10);
    scene.enqueue("n-1", "x").await;
    another(&scene).await;
    let held = locked(&scene, scene.session).await;
    let running = scene.run().await;
    scene.until("other", "delivered").await;
    assert_eq!(scene.state("n-1").await.0, "queued");
    held.rollback().await.unwrap();
    scene.until("n-1", "delivered").await;
    running.stop().await;
}

/// A call's result arrives while a transaction holds the session's lock and sends no wake-up afterwards.
#[tokio::test]
async fn a_wake_up_that_meets_a_lock_is_not_lost() {
    let mut scene = Scene::with(|seen| match seen.tool_outputs().len() {
        0 if seen.key.contains(":proj-7:") => Reply::call("c-1", "task_history", serde_json::json!({})),
        _ => Reply::text("ok"),
    })
    .await;
    // No other event wakes the session again.
    scene.world.set("delivery.tools_again_ms", 600_000);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "running").await;
    eventually("it waits for its call", || async {
        (scene
            .world
            .database
            .count("select count(*) from session where phase = 'waiting'")
            .await
            == 1)
            .then_some(())
    })
    .await;
    let held = locked(&scene, scene.session).await;
    scene.tool_finished("c-1", 1, "{}").await;
    // The later notification passed the claim, so the claim has met the lock.
    another(&scene).await;
    scene.until("other", "delivered").await;
    held.rollback().await.unwrap();
    scene.until("n-1", "delivered").await;
    running.stop().await;
}

#[tokio::test]
async fn a_locked_session_does_not_block_other_records() {
    let (scene, gate) = gated().await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    eventually("the provider has its call", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    let held = locked(&scene, scene.session).await;
    gate.add_permits(10);
    another(&scene).await;
    scene.until("other", "delivered").await;
    assert_eq!(scene.state("n-1").await.0, "running");
    held.rollback().await.unwrap();
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.provider.seen().len(), 2, "no answer was lost");
    running.stop().await;
}

#[tokio::test]
async fn an_answer_is_kept_while_the_database_is_slow() {
    let (mut scene, gate) = gated().await;
    scene.world.set("database.statement_timeout_ms", 300);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    eventually("the provider has its call", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    let database = &scene.world.database;
    let slow = "create sequence tries;
        create table slow as select 1;
        create function slow_down() returns trigger language plpgsql security definer as $$
        begin
            perform nextval('tries');
            if exists (select from slow) then perform pg_sleep(2); end if;
            return new;
        end $$;
        create trigger slow_down before update on turn for each row execute function slow_down()";
    sqlx::raw_sql(slow).execute(&database.owner).await.unwrap();
    gate.add_permits(10);
    eventually("more attempts than a single slow outcome gets", || async {
        (database.count("select last_value from tries").await >= 6).then_some(())
    })
    .await;
    sqlx::raw_sql("delete from slow")
        .execute(&database.owner)
        .await
        .unwrap();
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("state").await, ["finished"]);
    assert_eq!(scene.provider.seen().len(), 1, "its answer was kept");
    running.stop().await;
}
