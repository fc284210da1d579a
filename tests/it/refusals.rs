//! Refusals of every kind, each with its reason in the places a publisher can read: the notification, the dead letters, the event,
//! and `signalbox.dead.…`.

use futures::StreamExt;
use serde_json::{Value, json};
use testkit::{Reply, eventually};

use crate::house::House;

async fn letters(house: &House, account: &str) -> Vec<Value> {
    house.get(&format!("/api/orgs/{account}/dead-letters?limit=200")).await["items"]
        .as_array()
        .unwrap()
        .clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_says_why_where_a_publisher_would_look() {
    let house = House::open(|_| Reply::text("ok")).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &[]).await;
    house.task("acme", "T-2", &[]).await;
    let message = house
        .post("/api/orgs/acme/tasks/T-2/messages", json!({"body": "about T-2"}))
        .await;
    let client = house.world.client().await;
    let mut dead = client.subscribe("signalbox.dead.acme.*").await.unwrap();
    let mut events = client
        .subscribe("signalbox.event.acme.*.notification.refused")
        .await
        .unwrap();
    client.flush().await.unwrap();

    house
        .publish("acme", "T-1", json!({"id": "fine", "agent": "coder", "body": "x"}))
        .await;
    house.until("acme", "fine", "delivered").await;
    let mut hops = async_nats::HeaderMap::new();
    hops.insert("Signalbox-Hops", "1000");
    client
        .publish_with_headers(
            "signalbox.notification.acme.T-1",
            hops,
            json!({"id": "hops", "agent": "coder", "body": "x"}).to_string().into(),
        )
        .await
        .unwrap();
    let mut named = async_nats::HeaderMap::new();
    named.insert("Nats-Msg-Id", "broken");
    client
        .publish_with_headers("signalbox.notification.acme.T-1", named, "{nonsense".into())
        .await
        .unwrap();
    client.flush().await.unwrap();
    let cases = [
        (
            "nobody",
            json!({"id": "nobody", "agent": "nobody-here", "body": "x"}),
            "unknown_agent",
        ),
        ("noone", json!({"id": "noone", "body": "x"}), "no_agent"),
        (
            "field",
            json!({"id": "field", "agent": "coder", "body": 7}),
            "invalid_field",
        ),
        (
            "foreign",
            json!({"id": "foreign", "agent": "coder", "body": "x", "message_id": message["id"]}),
            "message_mismatch",
        ),
        (
            "large",
            json!({"id": "large", "agent": "coder", "body": "x".repeat(300 * 1024)}),
            "too_large",
        ),
    ];
    for (_, payload, _) in &cases {
        house.publish("acme", "T-1", payload.clone()).await;
    }
    house
        .publish(
            "acme",
            "T-1",
            json!({"id": "fine", "agent": "coder", "body": "other content"}),
        )
        .await;

    let mut expected: Vec<(&str, &str)> = cases.iter().map(|(id, _, reason)| (*id, *reason)).collect();
    expected.extend([("hops", "hop_limit"), ("broken", "malformed")]);
    for (id, reason) in &expected {
        let refused = house.until("acme", id, "refused").await;
        assert!(
            refused["reason"].as_str().unwrap().contains(reason),
            "{id}: {}",
            refused["reason"]
        );
    }
    let letters = eventually("all letters are there", || async {
        let found = letters(&house, "acme").await;
        (found.len() == expected.len() + 1).then_some(found)
    })
    .await;
    for (_, reason) in expected.iter().chain([&("fine", "id_conflict")]) {
        let letter = letters
            .iter()
            .find(|letter| letter["reason"] == *reason)
            .unwrap_or_else(|| panic!("no letter for {reason}: {letters:?}"));
        assert!(letter["detail"].as_str().unwrap().len() > 10, "{letter}");
        assert_eq!(letter["subject"], "signalbox.notification.acme.T-1");
    }
    assert_eq!(
        house.notification("acme", "fine").await["state"],
        "delivered",
        "the first content stands"
    );
    for _ in 0..=expected.len() {
        let letter: Value = serde_json::from_slice(&dead.next().await.unwrap().payload).unwrap();
        assert!(letter["reason"].is_string());
        let event: Value = serde_json::from_slice(&events.next().await.unwrap().payload).unwrap();
        assert_eq!(event["type"], "notification.refused");
        assert!(event["data"]["detail"].is_string());
    }
    assert_eq!(house.provider.seen().len(), 1, "nothing refused reached the provider");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_no_account_is_the_operator_s_to_read() {
    let house = House::open(|_| Reply::text("ok")).await;
    let mut dead = house.world.client().await.subscribe("signalbox.dead.>").await.unwrap();
    house
        .publish("ghost", "T-1", json!({"id": "n-1", "agent": "coder", "body": "x"}))
        .await;
    let letter: Value = serde_json::from_slice(&dead.next().await.unwrap().payload).unwrap();
    assert_eq!(letter["reason"], "unknown_account");
    let operator = house.get("/api/dead-letters").await;
    assert_eq!(operator["items"][0]["reason"], "unknown_account", "{operator}");
    // An account created later under that name does not see the refused text.
    house.account("ghost").await;
    assert!(letters(&house, "ghost").await.is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_task_is_created_or_refused_as_the_account_wants() {
    let house = House::open(|_| Reply::text("ok")).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.notify("acme", "NEW-1", "coder", "n-1", "x").await;
    house.until("acme", "n-1", "delivered").await;
    assert_eq!(house.get("/api/orgs/acme/tasks/new-1").await["id"], "NEW-1");
    house.patch("/api/orgs/acme", json!({"auto_create_tasks": false})).await;
    house.notify("acme", "NEW-2", "coder", "n-2", "x").await;
    assert!(
        house.until("acme", "n-2", "refused").await["reason"]
            .as_str()
            .unwrap()
            .contains("unknown_task")
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_can_be_redriven_once_its_cause_is_mended() {
    let house = House::open_with(
        |seen| {
            if seen.order < 2 {
                Reply::Status(500, "{}".to_owned(), vec![])
            } else {
                Reply::text("ok")
            }
        },
        &[("delivery.attempts_max", "2")],
    )
    .await;
    house.account("acme").await;
    house.task("acme", "T-1", &[]).await;
    // Refused by the resolver: the agent does not exist yet.
    house.notify("acme", "T-1", "coder", "n-1", "x").await;
    house.until("acme", "n-1", "refused").await;
    house.agent("acme", "coder").await;
    let redrive = async |index: usize, count: usize| {
        let found = eventually("the letter", || async {
            let found = letters(&house, "acme").await;
            (found.len() == count).then_some(found)
        })
        .await;
        let mut found = found;
        found.sort_by_key(|letter| letter["created_at"].as_str().unwrap().to_owned());
        let id = found[index]["id"].as_str().unwrap().to_owned();
        house
            .post(&format!("/api/orgs/acme/dead-letters/{id}/redrive"), json!({}))
            .await;
        id
    };
    redrive(0, 1).await;
    // Then the provider fails it twice.
    let failed = house.until("acme", "n-1", "failed").await;
    assert!(failed["reason"].as_str().unwrap().contains("server_error"), "{failed}");
    let letter = redrive(1, 2).await;
    house.until("acme", "n-1", "delivered").await;
    assert!(house.get(&format!("/api/orgs/acme/dead-letters/{letter}")).await["redriven_at"].is_string());
    assert_eq!(house.provider.seen().len(), 3);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_wake_each_other_are_cut_off() {
    let house = House::open_with(
        |seen| {
            let other = if seen.text().contains("(`ping`)") {
                "pong"
            } else {
                "ping"
            };
            match seen.tool_outputs().is_empty() {
                true => Reply::call(
                    &format!("c-{}", seen.order),
                    "response_request",
                    json!({"agents": [other], "body": "your turn"}),
                ),
                false => Reply::text("asked"),
            }
        },
        &[("resolver.hops_max", "4")],
    )
    .await;
    house.account("acme").await;
    house.agent("acme", "ping").await;
    house.agent("acme", "pong").await;
    house.task("acme", "T-1", &[]).await;
    house.notify("acme", "T-1", "ping", "n-1", "begin").await;
    let letter = eventually("the loop is cut", || async {
        letters(&house, "acme").await.first().cloned()
    })
    .await;
    assert_eq!(letter["reason"], "hop_limit", "{letter}");
    // The first notification and four wake-ups, with two provider calls each.
    eventually("the last turn ends", || async {
        (house.provider.seen().len() == 10).then_some(())
    })
    .await;
    assert_eq!(
        house
            .world
            .database
            .count("select count(*) from notification where state = 'refused'")
            .await,
        1
    );
    house.close().await;
}
