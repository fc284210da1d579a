//! A terminal status closes sessions (S3) in the same transaction, by API and by tool: while items wait, while a turn runs, and
//! against a concurrent notification. Reopening changes nothing until the next notification.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::house::House;

async fn furnished(script: impl Fn(&testkit::Seen) -> Reply + Send + Sync + 'static) -> House {
    let house = House::open(script).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    house
}

fn generations(sessions: &[Value]) -> Vec<(i64, &str)> {
    let mut found: Vec<(i64, &str)> = sessions
        .iter()
        .map(|session| {
            (
                session["generation"].as_i64().unwrap(),
                session["state"].as_str().unwrap(),
            )
        })
        .collect();
    found.sort_unstable();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reopened_task_gets_its_next_generation_with_the_next_notification_and_not_before() {
    let house = furnished(|_| Reply::text("ok")).await;
    for generation in 1..=3 {
        let id = format!("n-{generation}");
        house.notify("acme", "T-1", "coder", &id, "x").await;
        let delivered = house.until("acme", &id, "delivered").await;
        assert!(
            delivered["session_key"]
                .as_str()
                .unwrap()
                .ends_with(&format!(":v{generation}")),
            "{delivered}"
        );
        house.status("acme", "T-1", "done").await;
        let sessions = house.sessions("acme", "task=T-1").await;
        assert_eq!(sessions.len(), generation, "closing opens nothing");
        assert!(
            sessions
                .iter()
                .all(|session| session["state"] == "closed" && session["close_reason"] == "task_done"),
            "{sessions:?}"
        );
        house.status("acme", "T-1", "in_progress").await;
        assert_eq!(
            house.sessions("acme", "task=T-1").await.len(),
            generation,
            "reopening opens nothing"
        );
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_runs_while_its_task_is_done_is_recorded_and_posts_nothing() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let house = furnished(move |_| Reply::Gated(Arc::clone(&script), Box::new(Reply::text("a late word")))).await;
    house.notify("acme", "T-1", "coder", "n-1", "x").await;
    eventually("the call is in flight", || async {
        (house.provider.seen().len() == 1).then_some(())
    })
    .await;
    // An item of a person and one of a service wait behind it.
    house
        .notify("acme", "T-1", "coder", "n-2", "said before the close")
        .await;
    house
        .publish("acme", "T-1", json!({"id": "n-3", "agent": "coder", "body": "b"}))
        .await;
    house.until("acme", "n-3", "queued").await;
    house.status("acme", "T-1", "done").await;
    for id in ["n-2", "n-3"] {
        let cancelled = house.until("acme", id, "cancelled").await;
        assert_eq!(cancelled["reason"], "task closed");
    }
    gate.add_permits(10);
    let late = house.until("acme", "n-1", "delivered").await;
    let turn = house
        .get(&format!("/api/orgs/acme/turns/{}", late["turn_id"].as_str().unwrap()))
        .await;
    assert_eq!(
        (&turn["state"], &turn["reply"], &turn["late"]),
        (&json!("finished"), &json!("a late word"), &json!(true))
    );
    assert_eq!(generations(&house.sessions("acme", "task=T-1").await), [(1, "closed")]);
    // The next notification opens the next generation; the late reply is not in the thread.
    house.notify("acme", "T-1", "coder", "n-4", "again").await;
    assert!(
        house.until("acme", "n-4", "delivered").await["session_key"]
            .as_str()
            .unwrap()
            .ends_with(":v2")
    );
    eventually("the second reply is posted", || async {
        let messages = house.get("/api/orgs/acme/tasks/T-1/messages").await["items"]
            .as_array()
            .unwrap()
            .len();
        assert!(messages <= 1, "the late reply was posted");
        (messages == 1).then_some(())
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_moves_its_task_to_done_closes_its_session_and_still_gets_its_answer() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let house = furnished(move |seen| match seen.nth_of_key {
        0 if seen.key.ends_with(":v1") => Reply::Gated(
            Arc::clone(&script),
            Box::new(Reply::call(
                "c-1",
                "task_status",
                json!({"task_id": "T-1", "status": "done"}),
            )),
        ),
        1 => Reply::call("c-2", "task_message", json!({"task_id": "T-1", "body": "too late"})),
        _ => Reply::text("Done."),
    })
    .await;
    house.notify("acme", "T-1", "coder", "n-1", "finish it").await;
    eventually("the call is in flight", || async {
        (house.provider.seen().len() == 1).then_some(())
    })
    .await;
    // A person's item from after the closing turn's start moves to the next generation. A service's item is cancelled.
    house.notify("acme", "T-1", "coder", "n-person", "one more thing").await;
    house
        .publish("acme", "T-1", json!({"id": "n-service", "agent": "coder", "body": "b"}))
        .await;
    house.until("acme", "n-service", "queued").await;
    gate.add_permits(1);
    let first = house.until("acme", "n-1", "delivered").await;
    assert_eq!(house.get("/api/orgs/acme/tasks/T-1").await["status"], "done");
    assert_eq!(
        house.until("acme", "n-service", "cancelled").await["reason"],
        "task closed"
    );
    let carried = house.until("acme", "n-person", "delivered").await;
    assert!(carried["session_key"].as_str().unwrap().ends_with(":v2"), "{carried}");
    // Its results went back on its own key, and its tool calls after the close were refused.
    let seen = house.provider.seen_of(first["session_key"].as_str().unwrap());
    assert_eq!(seen.len(), 3);
    assert!(
        seen[1].tool_outputs()[0].1.contains("done"),
        "{:?}",
        seen[1].tool_outputs()
    );
    assert!(
        seen[2].tool_outputs()[0].1.contains("error"),
        "{:?}",
        seen[2].tool_outputs()
    );
    let turn = house
        .get(&format!("/api/orgs/acme/turns/{}", first["turn_id"].as_str().unwrap()))
        .await;
    assert_eq!((&turn["reply"], &turn["late"]), (&json!("Done."), &json!(true)));
    assert_eq!(turn["tool_calls"][0]["state"], "finished");
    assert_eq!(turn["tool_calls"][1]["state"], "refused");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn done_races_a_new_notification_many_times_and_every_item_has_one_outcome() {
    let house = furnished(|_| Reply::text("ok")).await;
    house.notify("acme", "T-1", "coder", "n-0", "x").await;
    house.until("acme", "n-0", "delivered").await;
    for round in 1..=40 {
        let id = format!("n-{round}");
        tokio::join!(
            house.notify("acme", "T-1", "coder", &id, "x"),
            house.status("acme", "T-1", "done")
        );
        eventually(&format!("{id} has an outcome"), || async {
            let state = house.notification("acme", &id).await["state"].clone();
            (state == "delivered" || state == "cancelled").then_some(())
        })
        .await;
        house.status("acme", "T-1", "in_progress").await;
    }
    let sessions = house.sessions("acme", "task=T-1&limit=200").await;
    let found = generations(&sessions);
    let numbers: Vec<i64> = found.iter().map(|(generation, _)| *generation).collect();
    assert_eq!(
        numbers,
        (1..=i64::try_from(found.len()).unwrap()).collect::<Vec<_>>(),
        "generations go up by one"
    );
    assert!(found.iter().filter(|(_, state)| *state == "active").count() <= 1);
    let twice = house.world.database.count("select count(*) from (select unnest(notification_ids) as id from turn group by 1 having count(*) > 1) as twice").await;
    assert_eq!(twice, 0, "a notification had two turns");
    assert!(house.provider.overlaps().is_empty());
    let queued = house
        .world
        .database
        .count("select count(*) from session where queued <> 0")
        .await;
    assert_eq!(queued, 0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_an_agent_closes_all_of_its_sessions() {
    let house = furnished(|_| Reply::text("ok")).await;
    house.notify("acme", "T-1", "coder", "n-1", "x").await;
    house.notify("acme", "-", "coder", "n-2", "x").await;
    house.until("acme", "n-1", "delivered").await;
    house.until("acme", "n-2", "delivered").await;
    let (status, _) = house
        .call(
            reqwest::Method::DELETE,
            format!("{}/api/orgs/acme/agents/coder", house.api()),
            testkit::OPERATOR_TOKEN,
            &[],
            None,
        )
        .await;
    assert!(status.is_success());
    let sessions = house.sessions("acme", "").await;
    assert_eq!(sessions.len(), 2);
    assert!(
        sessions
            .iter()
            .all(|session| session["state"] == "closed" && session["close_reason"] == "agent_removed"),
        "{sessions:?}"
    );
    house.notify("acme", "T-1", "coder", "n-3", "x").await;
    assert!(
        house.until("acme", "n-3", "refused").await["reason"]
            .as_str()
            .unwrap()
            .contains("unknown_agent")
    );
    house.close().await;
}

/// A failing provider does not change the verdict on a person's items: between two attempts they wait like any others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_person_said_goes_on_though_its_turn_waits_for_another_attempt() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let house = House::open_with(
        move |seen| match (seen.text().contains("(`reviewer`)"), seen.key.ends_with(":v1")) {
            (true, _) if seen.nth_of_key == 0 => Reply::Gated(
                Arc::clone(&script),
                Box::new(Reply::call(
                    "c-1",
                    "task_status",
                    json!({"task_id": "T-1", "status": "done"}),
                )),
            ),
            (false, true) => Reply::Status(500, "{}".to_owned(), vec![]),
            _ => Reply::text("ok"),
        },
        &[
            ("delivery.retry_delay_ms", "600000"),
            ("delivery.retry_delay_ms_max", "600000"),
        ],
    )
    .await;
    house.account("acme").await;
    for agent in ["coder", "reviewer"] {
        house.agent("acme", agent).await;
    }
    house.task("acme", "T-1", &[]).await;
    house.notify("acme", "T-1", "reviewer", "n-closing", "accept it").await;
    eventually("the closing turn began", || async {
        (house.provider.seen().len() == 1).then_some(())
    })
    .await;
    house.notify("acme", "T-1", "coder", "n-person", "one more thing").await;
    eventually("it was tried, and waits", || async {
        let sessions = house.sessions("acme", "task=T-1").await;
        sessions
            .iter()
            .any(|session| session["phase"] == "backoff")
            .then_some(())
    })
    .await;
    gate.add_permits(1);
    let carried = house.until("acme", "n-person", "delivered").await;
    assert!(carried["session_key"].as_str().unwrap().ends_with(":v2"), "{carried}");
    assert_eq!(carried["attempts"], 2);
    eventually("the turn that was tried has ended", || async {
        (house
            .world
            .database
            .count("select count(*) from turn where state = 'aborted'")
            .await
            == 1)
            .then_some(())
    })
    .await;
    house.until("acme", "n-closing", "delivered").await;
    // No event says that it was cancelled.
    eventually("everything was said", || async {
        (house.world.database.count("select count(*) from outbox").await == 0).then_some(())
    })
    .await;
    let events = async_nats::jetstream::new(house.world.operator().await)
        .get_stream("SIGNALBOX_EVENT")
        .await
        .unwrap();
    let told = |fact: &str| {
        let subject = format!("signalbox.event.acme.T-1.{fact}");
        let events = &events;
        async move { events.get_last_raw_message_by_subject(&subject).await.is_ok() }
    };
    assert!(told("turn.finished").await && !told("notification.cancelled").await);
    house.close().await;
}
