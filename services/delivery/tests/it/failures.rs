//! Failing providers, and outcomes that cannot be stored: retried, failed with a reason, and never blocking others.

use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use testkit::{Reply, eventually};

use crate::scene::Scene;

/// One failure first, then an answer, after so many attempts.
async fn recovers_from(failure: Reply, settings: &[(&str, &str)], attempts: i64) {
    let label = format!("{failure:?}");
    let mut scene = Scene::with(move |seen| {
        if seen.nth_of_key == 0 {
            failure.clone()
        } else {
            Reply::text("ok")
        }
    })
    .await;
    for (setting, value) in settings {
        scene.world.set(setting, value);
    }
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.provider.seen().len(), 2, "{label}");
    assert_eq!(
        scene
            .world
            .database
            .count("select attempts::bigint from notification")
            .await,
        attempts,
        "{label}"
    );
    assert_eq!(scene.turns("state").await, ["finished"], "{label}");
    running.stop().await;
}

#[tokio::test]
async fn transient_failures_are_retried() {
    recovers_from(Reply::Status(500, "{}".to_owned(), vec![]), &[], 2).await;
    recovers_from(Reply::Status(503, "{}".to_owned(), vec![]), &[], 2).await;
    recovers_from(
        Reply::Status(429, "{}".to_owned(), vec![("retry-after", "1".to_owned())]),
        &[],
        2,
    )
    .await;
}

#[tokio::test]
async fn broken_answers_are_retried() {
    recovers_from(Reply::Malformed, &[], 2).await;
    recovers_from(Reply::CutStream, &[], 2).await;
    recovers_from(Reply::Silence, &[("providers.default.idle_timeout_ms", "200")], 2).await;
    // The breaker waits, and the call that it kept is no attempt.
    recovers_from(Reply::Status(401, "{}".to_owned(), vec![]), &[], 1).await;
}

/// A person is told of the task once, however much of it fails. A recovery's own item begins no other recovery.
#[tokio::test]
async fn a_person_is_told_once_of_what_failed_for_good() {
    let scene = Scene::with(|_| Reply::Status(400, "{}".to_owned(), vec![])).await;
    let client = scene.world.client().await;
    let mut told = client
        .subscribe("signalbox.event.acme.PROJ-7.task.needs_person")
        .await
        .unwrap();
    client.flush().await.unwrap();
    for id in ["n-1", "n-2"] {
        scene.enqueue(id, "x").await;
    }
    let running = scene.run().await;
    scene.until("n-2", "failed").await;
    let event: Value = serde_json::from_slice(&told.next().await.unwrap().payload).unwrap();
    assert_eq!(event["data"]["cause"], "given_up");
    let rows = "select concat_ws(' ', cause, state, attempts) from recovery";
    assert_eq!(scene.world.database.texts(rows).await, ["given_up person 2"]);
    running.stop().await;
    let item = testkit::enqueued("acme", scene.session)
        .with("id", "n-3")
        .with("kind", "recovery");
    item.with("position", 3).insert(&scene.world.database.owner).await;
    let running = scene.run().await;
    scene.until("n-3", "failed").await;
    assert_eq!(scene.world.database.texts(rows).await, ["given_up person 2"]);
    assert!(told.next().now_or_never().is_none());
    running.stop().await;
}

#[tokio::test]
async fn a_permanent_failure_has_its_reason_and_can_be_redriven() {
    let check = async |reply: Reply, calls: usize, class: &str| {
        let mut scene = Scene::with(move |_| reply.clone()).await;
        scene.world.set("delivery.attempts_max", 3);
        scene.world.set("delivery.breaker_failures", 100);
        scene.world.set("providers.default.answer_bytes_max", 4096);
        let client = scene.world.client().await;
        let mut events = client
            .subscribe("signalbox.event.acme.PROJ-7.notification.failed")
            .await
            .unwrap();
        client.flush().await.unwrap();
        scene.enqueue("n-1", "x").await;
        scene.enqueue("n-2", "y").await;
        let running = scene.run().await;
        scene.until("n-2", "failed").await;
        let ids = scene
            .world
            .database
            .texts("select id::text from dead_letter order by created_at")
            .await;
        for (id, letter) in ["n-1", "n-2"].into_iter().zip(ids) {
            let event: Value = serde_json::from_slice(&events.next().await.unwrap().payload).unwrap();
            assert_eq!(event["data"]["reason"], class);
            assert_eq!(
                (&event["data"]["id"], &event["data"]["dead_letter_id"]),
                (&json!(id), &json!(letter))
            );
        }
        let (state, reason) = scene.state("n-1").await;
        assert_eq!(state, "failed");
        assert!(reason.as_deref().unwrap().starts_with(class), "{reason:?}");
        assert_eq!(scene.provider.seen().len(), calls * 2, "{class}");
        let letters = scene.world.database.texts("select reason || ' ' || subject || ' ' || (payload::jsonb ->> 'id') from dead_letter order by created_at").await;
        assert_eq!(
            letters,
            [
                format!("{class} signalbox.notification.acme.PROJ-7 n-1"),
                format!("{class} signalbox.notification.acme.PROJ-7 n-2")
            ]
        );
        assert_eq!(scene.turns("error_class").await, [class, class]);
        running.stop().await;
    };
    // Boxed: a scene with its listeners is a large future.
    Box::pin(check(Reply::Status(500, "{}".to_owned(), vec![]), 3, "server_error")).await;
    Box::pin(check(
        Reply::Status(400, r#"{"error":{"message":"no such model"}}"#.to_owned(), vec![]),
        1,
        "bad_request",
    ))
    .await;
    Box::pin(check(Reply::Huge(100_000), 1, "too_large")).await;
}

#[tokio::test]
async fn an_unreachable_provider_is_retried_until_the_turn_fails() {
    let mut scene = Scene::with(|_| Reply::text("never")).await;
    // Bound and not listening: no other process can take the port, and connections are refused.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = closed.local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/v1/responses");
    scene.world.set("providers.default.url", url);
    scene.world.set("delivery.attempts_max", 2);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "failed").await;
    assert!(scene.state("n-1").await.1.unwrap().starts_with("refused"));
    running.stop().await;
}

#[tokio::test]
async fn an_agent_that_keeps_calling_tools_is_stopped() {
    let mut scene = Scene::with(|seen| Reply::call(&format!("c-{}", seen.order), "task_history", json!({}))).await;
    scene.world.set("delivery.rounds_max", 2);
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    for ordinal in 1..=2 {
        let rounds = ordinal.to_string();
        eventually("the turn waits", || async {
            (scene.turns("state || rounds").await == [format!("awaiting_tools{rounds}")]).then_some(())
        })
        .await;
        scene.tool_finished(&format!("c-{}", ordinal - 1), ordinal, "{}").await;
    }
    scene.until("n-1", "failed").await;
    assert!(scene.state("n-1").await.1.unwrap().starts_with("tool_loop"));
    assert_eq!(
        scene.turns("task_history_called").await,
        ["true"],
        "every turn says so, however it ended"
    );
    running.stop().await;
}

/// A provider's output is untrusted: no character in it may keep an outcome from being recorded, since its session
/// would then stay leased for the life of this process.
#[tokio::test]
async fn characters_that_postgres_cannot_store_block_no_session() {
    let scene = Scene::with(|_| {
        let response = json!({"id": "resp\0", "status": "incomplete", "incomplete_details": {"reason": "why\0"},
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "some\0thing"}]}]});
        Reply::Status(200, response.to_string(), vec![])
    })
    .await;
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("reply").await, ["some\u{fffd}thing"]);
    assert_eq!(scene.turns("response_id").await, ["resp\u{fffd}"]);
    running.stop().await;
}

#[tokio::test]
async fn an_outcome_that_cannot_be_recorded_counts_as_a_failed_attempt() {
    let scene = Scene::with(|seen| Reply::text(if seen.nth_of_key == 0 { "poison" } else { "fine" })).await;
    for sql in [
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not this'; end $$",
        "create trigger refuse before update on turn for each row when (new.reply = 'poison') execute function refuse()",
    ] {
        sqlx::query(sql).execute(&scene.world.database.owner).await.unwrap();
    }
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("reply").await, ["fine"]);
    assert_eq!(scene.provider.seen().len(), 2);
    running.stop().await;
}
