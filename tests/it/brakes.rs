//! Queue modes and brakes through all services and the public contract: what came during a turn is one turn, a steer cuts a
//! running turn, a stop holds what waits until somebody resumes it or a person speaks.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use reqwest::StatusCode;
use serde_json::{Value, json};
use storage::Role;
use testkit::{Reply, Seen, eventually};
use tokio::sync::Semaphore;

use crate::house::House;

/// A house whose provider holds its first call until a permit comes.
async fn gated(settings: &[(&str, &str)]) -> (House, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let (script, calls) = (Arc::clone(&gate), AtomicUsize::new(0));
    let house = House::open_with(
        move |_| match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("first"))),
            _ => Reply::text("ok"),
        },
        settings,
    )
    .await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    (house, gate)
}

impl House {
    async fn send(&self, id: &str, mode: &str, sender: &str) {
        let kind = if sender == "ci" { "service" } else { "user" };
        let sender = json!({"kind": kind, "id": sender, "name": sender});
        let body = format!("body of {id}");
        let payload = json!({"id": id, "agent": "coder", "body": body, "queue_mode": mode, "sender": sender});
        self.publish("acme", "T-1", payload).await;
    }

    async fn called(&self, calls: usize) -> Vec<Seen> {
        eventually(&format!("the provider has {calls} calls"), || async {
            (self.provider.seen().len() >= calls).then(|| self.provider.seen())
        })
        .await
    }

    async fn queued(&self, count: usize) {
        eventually(&format!("{count} items wait"), || async {
            (self.session().await["queued"] == count).then_some(())
        })
        .await;
    }

    async fn session(&self) -> Value {
        self.sessions("acme", "task=T-1&active=true").await.remove(0)
    }

    async fn stop(&self, body: Value) -> Value {
        let id = self.session().await["id"].as_str().unwrap().to_owned();
        self.post(&format!("/api/orgs/acme/sessions/{id}/stop"), body).await
    }

    async fn reason(&self, id: &str) -> Value {
        self.notification("acme", id).await["reason"].take()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_messages_become_one_turn() {
    let (house, gate) = gated(&[("delivery.collect_debounce_ms", "200")]).await;
    house.send("n-1", "collect", "ann").await;
    house.called(1).await;
    for id in ["n-2", "n-3", "n-4"] {
        house.send(id, "collect", "ann").await;
    }
    house.send("n-5", "collect", "bob").await;
    house.queued(4).await;
    gate.add_permits(1);
    let mut turns = Vec::new();
    for id in ["n-1", "n-2", "n-3", "n-4", "n-5"] {
        let delivered = house.until("acme", id, "delivered").await;
        turns.push(delivered["turn_id"].as_str().unwrap().to_owned());
    }
    assert!(turns[1] == turns[2] && turns[2] == turns[3], "{turns:?}");
    assert!(turns[0] != turns[1] && turns[3] != turns[4], "{turns:?}");
    let turn = house.get(&format!("/api/orgs/acme/turns/{}", turns[1])).await;
    assert_eq!(turn["notifications"], json!(["n-2", "n-3", "n-4"]));
    let input = house.called(3).await[1].input();
    assert!(input.contains("[Follow-up messages from @\"ann\"]:\n1. \n"), "{input}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steer_cuts_a_running_turn_and_loses_nothing() {
    // The sweep would take longer than this test waits: the call is dropped on the hint.
    let (house, _gate) = gated(&[("delivery.sweep_interval_ms", "600000")]).await;
    house.send("n-1", "followup", "ann").await;
    house.called(1).await;
    house.send("n-2", "followup", "ann").await;
    house.queued(1).await;
    house.send("n-3", "steer", "ci").await;
    for id in ["n-3", "n-2"] {
        house.until("acme", id, "delivered").await;
    }
    assert_eq!(house.notification("acme", "n-1").await["state"], "cancelled");
    assert_eq!(house.reason("n-1").await, "steered: by publisher, on behalf of ci");
    let inputs: Vec<String> = house.called(3).await.iter().map(Seen::input).collect();
    assert!(
        inputs[1].contains("body of n-3")
            && inputs[1].contains("ended for a newer message by \"publisher, on behalf of ci\""),
        "{}",
        inputs[1]
    );
    assert!(
        inputs[2].contains("body of n-2") && !inputs[2].contains("newer message"),
        "{}",
        inputs[2]
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_holds_what_waits_until_somebody_goes_on() {
    let (house, _gate) = gated(&[]).await;
    house.send("n-1", "followup", "ann").await;
    house.called(1).await;
    house.send("n-2", "followup", "ci").await;
    house.queued(1).await;
    let answer = house.stop(json!({})).await;
    assert_eq!(answer["state"], "stopping");
    house.until("acme", "n-1", "cancelled").await;
    let turn = house
        .get(&format!("/api/orgs/acme/turns/{}", answer["turn_id"].as_str().unwrap()))
        .await;
    assert_eq!(turn["state"], "aborted");
    eventually("the session is parked", || async {
        (house.session().await["gate"] == "stopped").then_some(())
    })
    .await;
    // An item of a service waits with the others.
    house.send("n-3", "followup", "ci").await;
    house.queued(2).await;
    assert_eq!(house.session().await["gate"], "stopped");
    assert_eq!(house.called(1).await.len(), 1, "nothing restarts by itself");
    // An item of a person opens the gate, and all goes on in order.
    house.send("n-4", "followup", "ann").await;
    for id in ["n-2", "n-3", "n-4"] {
        house.until("acme", id, "delivered").await;
    }
    let order: Vec<bool> = house.called(4).await[1..]
        .iter()
        .zip(["n-2", "n-3", "n-4"])
        .map(|(seen, id)| seen.input().contains(&format!("body of {id}")))
        .collect();
    assert_eq!(order, [true; 3]);
    let answer = house.stop(json!({})).await;
    assert_eq!(answer["state"], "nothing", "nothing runs any more");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_session_is_resumed_over_the_api() {
    let (house, _gate) = gated(&[]).await;
    house.send("n-1", "followup", "ann").await;
    house.called(1).await;
    house.send("n-2", "followup", "ci").await;
    house.queued(1).await;
    house.stop(json!({"then": "hold"})).await;
    house.until("acme", "n-1", "cancelled").await;
    let id = house.session().await["id"].as_str().unwrap().to_owned();
    let path = format!("/api/orgs/acme/sessions/{id}/resume");
    let session = house.post(&path, json!({})).await;
    assert_eq!(session["gate"], Value::Null);
    house.until("acme", "n-2", "delivered").await;
    house.post(&path, json!({})).await;
    let member = house.key("acme", "service").await;
    let url = format!("{}{path}", house.api());
    let (status, _) = house
        .call(reqwest::Method::POST, url, &member, &[], Some(json!({})))
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN, "a service resumes nothing");
    house.close().await;
}

/// A crash point that no notification reaches by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_outlives_the_holder_that_dropped_the_call() {
    let (mut house, _gate) = gated(&[]).await;
    house.send("n-1", "followup", "ann").await;
    house.called(1).await;
    house.send("n-2", "followup", "ci").await;
    house.queued(1).await;
    house.running(Role::Delivery).crash_at("delivery.stop_dropped", 1);
    let answer = house.stop(json!({})).await;
    house.running(Role::Delivery).crashed().await;
    assert_eq!(house.notification("acme", "n-1").await["state"], "running");
    house.kill(Role::Delivery);
    house.up().await;
    house.until("acme", "n-1", "cancelled").await;
    assert!(house.reason("n-1").await.as_str().unwrap().starts_with("stopped: by "));
    let turn = format!("/api/orgs/acme/turns/{}", answer["turn_id"].as_str().unwrap());
    assert_eq!(house.get(&turn).await["state"], "aborted");
    let session = house.session().await;
    assert_eq!((&session["gate"], &session["queued"]), (&json!("stopped"), &json!(1)));
    assert_eq!(house.called(1).await.len(), 1, "the call is not made again");
    let id = session["id"].as_str().unwrap();
    house
        .post(&format!("/api/orgs/acme/sessions/{id}/resume"), json!({}))
        .await;
    house.until("acme", "n-2", "delivered").await;
    assert_eq!(house.world.database.count("select count(*) from dead_letter").await, 0);
    assert!(house.provider.overlaps().is_empty());
    house.close().await;
}
