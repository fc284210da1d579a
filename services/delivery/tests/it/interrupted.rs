//! Turns whose holder died, whose outcome is unknown, or whose session closed meanwhile.

use std::sync::Arc;

use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::scene::Scene;

#[tokio::test]
async fn a_turn_whose_holder_died_is_resumed_under_the_same_id() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = Scene::with(move |seen| match seen.nth_of_key {
        0 => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("too late"))),
        _ => Reply::text("again"),
    })
    .await;
    scene.enqueue("n-1", "x").await;
    let first = scene.run().await;
    eventually("the call is in flight", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    first.cut_off();
    let second = scene.run().await;
    scene.until("n-1", "delivered").await;
    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        seen[0].idempotency_key, seen[1].idempotency_key,
        "the same call keeps its key"
    );
    assert_eq!(scene.turns("reply").await, ["again"]);
    assert_eq!(scene.turns("fence").await, ["2"]);
    second.stop().await;
}

#[tokio::test]
async fn an_agent_with_tools_of_its_own_never_gets_a_blind_resend() {
    let mut scene = Scene::with(|seen| {
        if seen.nth_of_key == 0 {
            Reply::CutStream
        } else {
            Reply::text("I looked first.")
        }
    })
    .await;
    scene.world.set("providers.default.effects", "own");
    scene.enqueue("n-1", "Deploy it").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("state").await, ["unknown", "finished"]);
    let seen = scene.provider.seen();
    assert!(!seen[0].input().contains("interrupted"));
    assert!(
        seen[1]
            .input()
            .contains("an earlier turn on this work, yours or that of the agent before you, was interrupted"),
        "{}",
        seen[1].input()
    );
    assert_ne!(seen[0].idempotency_key, seen[1].idempotency_key);
    running.stop().await;
}

/// The provider refused the turn that was to tell it: no agent has read it.
#[tokio::test]
async fn what_no_agent_has_read_is_told_again() {
    let scene = Scene::with(|seen| match seen.order {
        0 => Reply::Status(400, "no".to_owned(), Vec::new()),
        _ => Reply::text("ok"),
    })
    .await;
    sqlx::query("update session set interrupted = true")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "failed").await;
    for id in ["n-2", "n-3"] {
        scene.enqueue(id, "x").await;
        scene.until(id, "delivered").await;
    }
    let seen = scene.provider.seen();
    let told: Vec<bool> = seen
        .iter()
        .map(|seen| seen.input().contains("an earlier turn"))
        .collect();
    assert_eq!(told, [true, true, false]);
    running.stop().await;
}

/// The notification failed, and the agent's progress on it is unknown: the next turn starts with a note of that.
#[tokio::test]
async fn an_interruption_that_was_the_last_attempt_is_told_to_the_next_notification() {
    let mut scene = Scene::with(|seen| {
        if seen.nth_of_key == 0 {
            Reply::CutStream
        } else {
            Reply::text("I looked first.")
        }
    })
    .await;
    scene.world.set("providers.default.effects", "own");
    scene.world.set("delivery.attempts_max", 1);
    scene.enqueue("n-1", "Deploy it").await;
    scene.enqueue("n-2", "And now?").await;
    scene.enqueue("n-3", "Well done").await;
    let running = scene.run().await;
    scene.until("n-3", "delivered").await;
    let (state, reason) = scene.state("n-1").await;
    assert_eq!(state, "failed");
    assert!(reason.as_deref().unwrap().starts_with("outcome_unknown"), "{reason:?}");
    let told: Vec<bool> = scene
        .provider
        .seen()
        .iter()
        .map(|seen| seen.input().contains("was interrupted"))
        .collect();
    assert_eq!(told, [false, true, false]);
    running.stop().await;
}

#[tokio::test]
async fn a_reply_after_the_close_is_recorded_and_changes_nothing() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = Scene::with(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("a late word")))).await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    eventually("the call is in flight", || async {
        (scene.provider.seen().len() == 1).then_some(())
    })
    .await;
    sqlx::query("update session set closed_at = now(), close_reason = 'task_done'")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    gate.add_permits(1);
    scene.until("n-1", "delivered").await;
    assert_eq!(
        scene.turns("state || ' ' || late || ' ' || reply").await,
        ["finished true a late word"]
    );
    let events = scene
        .world
        .database
        .count("select count(*) from session where closed_at is not null and phase = 'idle'")
        .await;
    assert_eq!(events, 1);
    running.stop().await;
}

#[tokio::test]
async fn a_turn_that_waits_for_another_attempt_ends_with_its_session() {
    let mut scene = Scene::with(|_| Reply::Status(500, "{}".to_owned(), vec![])).await;
    scene.world.set("delivery.retry_delay_ms", 60_000);
    scene.world.set("delivery.retry_delay_ms_max", 60_000);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    eventually("it waits", || async {
        (scene.turns("state").await == ["started"]).then_some(())
    })
    .await;
    sqlx::query("update session set closed_at = now(), close_reason = 'task_done', wake_at = now()")
        .execute(&scene.world.database.owner)
        .await
        .unwrap();
    scene.until("n-1", "cancelled").await;
    assert_eq!(scene.state("n-1").await.1.as_deref(), Some("task closed"));
    assert_eq!(scene.turns("state").await, ["aborted"]);
    assert_eq!(scene.provider.seen().len(), 1);
    running.stop().await;
}
