//! The picture in ARCHITECTURE.md as a test: one notification, hop by hop, seen only through the public contract.

use futures::StreamExt;
use serde_json::{Value, json};
use testkit::{Reply, eventually};

use crate::house::House;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_notification_walked_hop_by_hop() {
    let house = House::open(|seen| match seen.nth_of_key {
        0 => Reply::call("call-1", "task_history", json!({"task_id": "PROJ-7"})),
        _ => Reply::text("The tests pass again."),
    })
    .await;
    house.account("acme").await;
    let agent = house.agent("acme", "coder").await;
    house.task("acme", "PROJ-7", &["coder"]).await;
    let client = house.world.client().await;
    // A publisher hears events only.
    let operator = house.world.operator().await;
    let mut seen_on_bus = operator.subscribe("signalbox.>").await.unwrap();
    operator.flush().await.unwrap();

    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("traceparent", traceparent);
    let full = json!({"id": "ci-4711", "type": "ci_failed", "agent": "coder", "title": "CI", "body": "Tests fail on main",
        "sender": {"kind": "service", "id": "ci", "name": "CI"}, "queue_mode": "followup", "metadata": {"run": 4711}});
    client
        .publish_with_headers("signalbox.notification.acme.PROJ-7", headers, full.to_string().into())
        .await
        .unwrap();

    let delivered = house.until("acme", "ci-4711", "delivered").await;
    assert_eq!(delivered["task"], "PROJ-7");
    assert_eq!(delivered["type"], "ci_failed");
    assert_eq!(delivered["session_key"], format!("task:proj-7:agent:{agent}:acme:v1"));
    assert_eq!(delivered["attempts"], 1);

    // The API shows the whole turn.
    let turn = house
        .get(&format!(
            "/api/orgs/acme/turns/{}",
            delivered["turn_id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(turn["state"], "finished");
    assert_eq!(turn["number"], 1);
    assert_eq!(turn["notifications"], json!(["ci-4711"]));
    assert_eq!(turn["reply"], "The tests pass again.");
    assert_eq!(turn["profile"]["version"], prompt::PROFILE_VERSION);
    assert_eq!(turn["tool_calls"][0]["name"], "task_history");
    assert_eq!(turn["tool_calls"][0]["state"], "finished");
    assert_eq!(
        turn["tool_calls"][0]["result"]["task"]["id"], "PROJ-7",
        "{}",
        turn["tool_calls"][0]
    );
    assert_eq!(turn["usage"]["total_tokens"], 106);
    assert!(
        turn["instructions"]
            .as_str()
            .unwrap()
            .contains("Act on this notification only")
    );
    assert!(turn["input"].as_str().unwrap().contains("Notification: \"ci-4711\""));
    assert!(!turn["manifest"]["parts"].as_array().unwrap().is_empty());

    let session = delivered["session_id"].as_str().unwrap();
    let turns = house.get(&format!("/api/orgs/acme/sessions/{session}/turns")).await;
    assert_eq!(turns["items"][0]["id"], delivered["turn_id"]);

    // Both provider calls went to one session.
    let seen = house.provider.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].key, delivered["session_key"]);
    assert_eq!(seen[1].key, seen[0].key);
    assert!(seen[1].tool_outputs()[0].1.contains("PROJ-7"));

    // The reply is in the thread.
    let message = eventually("the reply is posted", || async {
        house.get("/api/orgs/acme/tasks/PROJ-7/messages").await["items"]
            .as_array()
            .unwrap()
            .first()
            .cloned()
    })
    .await;
    assert_eq!(message["body"], "The tests pass again.");
    assert_eq!(message["author"]["kind"], "agent");
    assert_eq!(message["author"]["id"], agent);

    // Every hop was on the bus, with its headers, in one trace.
    let mut subjects = Vec::new();
    while subjects.last().map(String::as_str) != Some("signalbox.event.acme.PROJ-7.message.posted") {
        let message = seen_on_bus.next().await.unwrap();
        let subject = message.subject.to_string();
        if subject.starts_with("signalbox.live.") || subject.starts_with("signalbox.stored.") {
            continue;
        }
        let headers = message.headers.unwrap();
        let trace = headers
            .get("traceparent")
            .map(|value| value.as_str().to_owned())
            .unwrap_or_default();
        // Earlier messages of the API's own requests have other traces.
        if subjects.is_empty() && !subject.starts_with("signalbox.notification.") {
            continue;
        }
        assert!(
            trace.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"),
            "{subject}: {trace}"
        );
        if subject != "signalbox.notification.acme.PROJ-7" {
            for name in [
                "Nats-Msg-Id",
                "Signalbox-Cause",
                "Signalbox-Hops",
                "ce-specversion",
                "ce-id",
                "ce-type",
                "ce-source",
                "ce-subject",
                "ce-time",
            ] {
                assert!(headers.get(name).is_some(), "{subject} lacks {name}");
            }
            serde_json::from_slice::<Value>(&message.payload).unwrap();
        }
        subjects.push(subject);
    }
    for expected in [
        "signalbox.notification.acme.PROJ-7",
        "signalbox.session.resolved.acme.PROJ-7",
        "signalbox.event.acme.PROJ-7.session.opened",
        "signalbox.event.acme.PROJ-7.turn.started",
        "signalbox.tool.requested.acme.PROJ-7",
        "signalbox.tool.finished.acme.PROJ-7",
        "signalbox.event.acme.PROJ-7.turn.finished",
        "signalbox.event.acme.PROJ-7.message.posted",
    ] {
        assert!(
            subjects.iter().any(|subject| subject == expected),
            "{expected} is not among {subjects:?}"
        );
    }
    house.close().await;
}
