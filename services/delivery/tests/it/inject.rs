//! Items with mode `inject`: they go to the turn in progress with the results of its tools.

use std::sync::Arc;

use domain::StopThen;
use serde_json::json;
use testkit::{Reply, enqueued};
use tokio::sync::Semaphore;

use crate::scene::Scene;

/// A provider that asks for a tool first. Its second call gets `then`; the others are answered.
async fn asking(then: impl Fn() -> Reply + Send + Sync + 'static) -> Scene {
    Scene::with(move |seen| match seen.order {
        0 => Reply::call("c-1", "task_history", json!({})),
        1 => then(),
        _ => Reply::text("ok"),
    })
    .await
}

impl Scene {
    async fn inject(&self, id: &str, author: &str) {
        let row = enqueued(&self.account, self.session)
            .with("id", id)
            .with("body", format!("body of {id}"))
            .with("queue_mode", "inject")
            .with("sender_name", author);
        row.insert(&self.world.database.owner).await;
    }

    /// Enqueues `n-1`; its turn waits for its tool.
    async fn until_it_asks(&self) {
        self.enqueue("n-1", "x").await;
        self.until("n-1", "running").await;
        testkit::eventually("the turn waits for its tool", || async {
            (self.turns("state").await == ["awaiting_tools"]).then_some(())
        })
        .await;
    }

    async fn notifications_of_turns(&self) -> Vec<String> {
        self.turns("array_to_string(notification_ids, ' ')").await
    }
}

#[tokio::test]
async fn what_came_goes_with_the_tool_results_and_shares_the_turns_fate() {
    let scene = asking(|| Reply::text("done")).await;
    let running = scene.run().await;
    scene.until_it_asks().await;
    scene.enqueue("n-2", "y").await;
    scene.inject("i-1", "Ann").await;
    scene.inject("i-2", "Bob").await;
    // Signalbox's own items are never given to a turn in progress.
    let answer = enqueued(&scene.account, scene.session)
        .with("id", "a-1")
        .with("kind", "answer");
    answer
        .with("queue_mode", "inject")
        .insert(&scene.world.database.owner)
        .await;
    scene.tool_finished("c-1", 1, "{}").await;
    for id in ["n-1", "i-1", "i-2", "n-2", "a-1"] {
        scene.until(id, "delivered").await;
    }
    assert_eq!(scene.notifications_of_turns().await, ["n-1 i-1 i-2", "n-2", "a-1"]);
    let told = scene.provider.seen()[1].input();
    for text in ["From: user \"Ann\"", "body of i-1", "From: user \"Bob\"", "body of i-2"] {
        assert!(told.contains(text), "{text} is not in {told}");
    }
    let counted = "select queued::text from session where task_id = 'proj-7'";
    assert_eq!(scene.world.database.texts(counted).await, ["0"]);
    running.stop().await;
}

#[tokio::test]
async fn the_same_call_carries_the_same_note_after_a_crash() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = asking(move || Reply::Gated(Arc::clone(&script), Box::new(Reply::text("never said")))).await;
    let first = scene.run().await;
    scene.until_it_asks().await;
    scene.inject("i-1", "Ann").await;
    scene.tool_finished("c-1", 1, "{}").await;
    scene.until("i-1", "running").await;
    scene.called(2).await;
    first.cut_off();
    scene.inject("i-2", "Ann").await;
    let second = scene.run().await;
    for id in ["n-1", "i-1", "i-2"] {
        scene.until(id, "delivered").await;
    }
    let seen = scene.provider.seen();
    assert!(seen[1].input().contains("body of i-1"));
    assert_eq!(seen[1].input(), seen[2].input());
    assert_eq!(scene.notifications_of_turns().await, ["n-1 i-1", "i-2"]);
    second.stop().await;
}

#[tokio::test]
async fn a_note_of_a_crash_before_its_commit_is_given_once() {
    let scene = asking(|| Reply::text("ok")).await;
    let first = scene.run().await;
    first.crash_at("delivery.note_written", 1);
    scene.until_it_asks().await;
    scene.inject("i-1", "Ann").await;
    scene.tool_finished("c-1", 1, "{}").await;
    first.crashed().await;
    first.cut_off();
    let second = scene.run().await;
    scene.until("i-1", "delivered").await;
    let seen = scene.provider.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].input().matches("body of i-1").count(), 1);
    assert_eq!(scene.notifications_of_turns().await, ["n-1 i-1"]);
    second.stop().await;
}

#[tokio::test]
async fn a_note_of_a_failed_call_goes_back_to_its_place() {
    let mut scene = Scene::with(|seen| match (seen.order, seen.input().contains("body of i-1")) {
        (0, _) => Reply::call("c-1", "task_history", json!({})),
        (1..=3, true) => Reply::Status(500, String::new(), Vec::new()),
        _ => Reply::text("ok"),
    })
    .await;
    scene.world.set("delivery.attempts_max", 3);
    scene.world.set("delivery.retry_delay_ms", 1);
    let running = scene.run().await;
    scene.until_it_asks().await;
    scene.enqueue("n-2", "y").await;
    scene.inject("i-1", "Ann").await;
    scene.enqueue("n-3", "z").await;
    scene.tool_finished("c-1", 1, "{}").await;
    scene.until("n-1", "failed").await;
    for id in ["n-2", "i-1", "n-3"] {
        scene.until(id, "delivered").await;
    }
    assert_eq!(scene.notifications_of_turns().await, ["n-1 i-1", "n-2", "i-1", "n-3"]);
    let attempts = "select attempts::text from notification where id in ('n-1', 'i-1') order by id";
    assert_eq!(
        scene.world.database.texts(attempts).await,
        ["2", "3"],
        "all failed calls together are one attempt at i-1"
    );
    let letters = "select count(*) from dead_letter";
    assert_eq!(scene.world.database.count(letters).await, 1);
    running.stop().await;
}

#[tokio::test]
async fn a_stop_ends_the_turn_and_keeps_what_its_agent_may_not_have_seen() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = asking(move || Reply::Gated(Arc::clone(&script), Box::new(Reply::text("never said")))).await;
    let running = scene.run().await;
    scene.until_it_asks().await;
    scene.inject("i-1", "Ann").await;
    scene.tool_finished("c-1", 1, "{}").await;
    scene.called(2).await;
    scene.ask(StopThen::Hold, None).await.unwrap();
    scene.until("n-1", "cancelled").await;
    scene.session_is("backoff stopped 1 false").await;
    assert_eq!(scene.state("i-1").await, ("queued".to_owned(), None));
    scene.resume().await;
    scene.until("i-1", "delivered").await;
    running.stop().await;
}

#[tokio::test]
async fn an_inject_at_rest_or_without_further_tool_results_has_its_own_turn() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let scene = Scene::with(move |seen| match seen.order {
        0 => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("first"))),
        _ => Reply::text("ok"),
    })
    .await;
    scene.inject("i-1", "Ann").await;
    let running = scene.run().await;
    scene.called(1).await;
    scene.inject("i-2", "Ann").await;
    gate.add_permits(1);
    for id in ["i-1", "i-2"] {
        scene.until(id, "delivered").await;
    }
    assert_eq!(scene.notifications_of_turns().await, ["i-1", "i-2"]);
    running.stop().await;
}

/// What does not fit stays in its place, and what is behind it stays behind it.
#[tokio::test]
async fn a_note_has_a_limit() {
    let mut scene = asking(|| Reply::text("done")).await;
    scene.world.set("delivery.inject_bytes_max", 1_024);
    scene.world.set("delivery.inject_items_max", 2);
    let running = scene.run().await;
    scene.until_it_asks().await;
    for id in ["i-1", "i-2", "i-3"] {
        scene.inject(id, "Ann").await;
    }
    scene.tool_finished("c-1", 1, "{}").await;
    scene.until("i-3", "delivered").await;
    assert_eq!(scene.notifications_of_turns().await, ["n-1 i-1 i-2", "i-3"]);
    running.stop().await;
}

/// What makes a provider refuse a turn fails in its own turn, and takes no further one with it.
#[tokio::test]
async fn a_refused_note_is_given_to_no_further_turn() {
    let scene = Scene::with(|seen| {
        if seen.input().contains("body of bad") {
            return Reply::Status(400, String::new(), Vec::new());
        }
        match seen.order {
            0 => Reply::call("c-1", "task_history", json!({})),
            _ => Reply::text("ok"),
        }
    })
    .await;
    let running = scene.run().await;
    scene.until_it_asks().await;
    scene.inject("bad", "Eve").await;
    scene.tool_finished("c-1", 1, "{}").await;
    scene.until("n-1", "failed").await;
    scene.until("bad", "failed").await;
    let waiting = "select attempts::text from notification where id = 'bad'";
    assert_eq!(scene.world.database.texts(waiting).await, ["2"]);
    assert_eq!(scene.notifications_of_turns().await, ["n-1 bad", "bad"]);
    running.stop().await;
}
