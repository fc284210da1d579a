//! Pauses and cancels through all services and the public contract, on two replicas of delivery.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use storage::Role;
use testkit::{Reply, Running, Seen, eventually};
use tokio::sync::Semaphore;

use crate::house::House;

/// The sweeps of stop requests and of neglected sessions would take longer than a test waits: hints do the work.
const HINTS_ONLY: &[(&str, &str)] = &[("delivery.sweep_interval_ms", "600000")];

/// A house with a second delivery, whose provider holds its first call until a permit comes.
async fn gated(first: impl Fn() -> Reply + Send + Sync + 'static) -> (House, Running<SocketAddr>, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let (script, calls) = (Arc::clone(&gate), AtomicUsize::new(0));
    let house = House::open_with(
        move |_| match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::Gated(Arc::clone(&script), Box::new(first())),
            _ => Reply::text("ok"),
        },
        HINTS_ONLY,
    )
    .await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    let second = house.world.run(Role::Delivery, delivery::start).await;
    (house, second, gate)
}

impl House {
    async fn said(&self, id: &str, kind: &str) {
        let sender = json!({"kind": kind, "id": "ann", "name": "ann"});
        let payload = json!({"id": id, "agent": "coder", "body": format!("body of {id}"), "sender": sender});
        self.publish("acme", "T-1", payload).await;
    }

    async fn calls_are(&self, calls: usize) -> Vec<Seen> {
        eventually(&format!("the provider has {calls} calls"), || async {
            (self.provider.seen().len() >= calls).then(|| self.provider.seen())
        })
        .await
    }

    async fn newest(&self) -> Value {
        self.sessions("acme", "task=T-1").await.remove(0)
    }

    async fn session_has(&self, expected: Value) {
        eventually(&format!("the session has {expected}"), || async {
            let session = self.newest().await;
            let mut fields = expected.as_object().unwrap().iter();
            fields.all(|(name, value)| session[name] == *value).then_some(())
        })
        .await;
    }

    async fn outcome(&self, id: &str) -> (Value, Value) {
        let mut notification = self.notification("acme", id).await;
        (notification["state"].take(), notification["reason"].take())
    }

    async fn turn_of(&self, id: &str) -> Value {
        let turn = self.notification("acme", id).await["turn_id"].take();
        self.get(&format!("/api/orgs/acme/turns/{}", turn.as_str().unwrap()))
            .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_stops_ends_a_call_and_holds_what_waits() {
    let (house, second, _gate) = gated(|| Reply::text("never said")).await;
    house.said("n-1", "user").await;
    house.calls_are(1).await;
    house.said("n-2", "service").await;
    house.session_has(json!({"queued": 1})).await;
    let hold = json!({"scope": {"kind": "agent", "id": "coder"}, "running": "stop", "reason": "it loops"});
    let placed = house.post("/api/orgs/acme/holds", hold).await;
    assert_eq!(
        placed["affected"],
        json!({"turns": 1, "items": 1, "sessions": 1, "at_least": false})
    );
    house.until("acme", "n-1", "cancelled").await;
    assert_eq!(
        house.outcome("n-1").await,
        (json!("cancelled"), json!("paused: by Operator"))
    );
    house.session_has(json!({"gate": "pause", "queued": 1})).await;
    // A person's item waits too, and so does a steer.
    house.said("n-3", "user").await;
    house.session_has(json!({"gate": "pause", "queued": 2})).await;
    assert_eq!(house.calls_are(1).await.len(), 1);

    let path = format!("/api/orgs/acme/holds/{}", placed["id"].as_str().unwrap());
    let url = format!("{}{path}", house.api());
    let token = house.key("acme", "member").await;
    for _ in 0..2 {
        let (status, released) = house.call(Method::DELETE, url.clone(), &token, &[], None).await;
        assert_eq!((status, &released["active"]), (StatusCode::OK, &json!(false)));
    }
    for id in ["n-2", "n-3"] {
        house.until("acme", id, "delivered").await;
    }
    let told = house.calls_are(2).await[1].input();
    assert!(told.contains("was ended by a pause by \"Operator\""), "{told}");
    second.stop().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_running_call_and_all_that_waits() {
    let (house, second, _gate) = gated(|| Reply::text("never said")).await;
    house.said("n-1", "user").await;
    house.calls_are(1).await;
    house.said("n-2", "user").await;
    house.said("n-3", "service").await;
    house.session_has(json!({"queued": 2})).await;
    let before = house.get("/api/orgs/acme/tasks/T-1").await;
    let affected = json!({"turns": 1, "items": {"cancelled": 2, "carried": 0}, "sessions": 1});
    let path = "/api/orgs/acme/tasks/t-1/cancel";
    for dry_run in [
        house.post(path, json!({"dry_run": true})).await,
        house
            .patch(
                "/api/orgs/acme/tasks/T-1",
                json!({"status": "cancelled", "dry_run": true}),
            )
            .await,
    ] {
        assert_eq!(
            (&dry_run["status"], &dry_run["affected"]),
            (&json!("cancelled"), &affected)
        );
    }
    assert_eq!(
        house.get("/api/orgs/acme/tasks/T-1").await,
        before,
        "a dry run writes nothing"
    );
    house
        .session_has(json!({"queued": 2, "stopping": false, "state": "active"}))
        .await;

    let cancelled = house.post(path, json!({"reason": "no longer wanted"})).await;
    assert_eq!(
        (&cancelled["status"], &cancelled["affected"]),
        (&json!("cancelled"), &affected)
    );
    for id in ["n-1", "n-2", "n-3"] {
        house.until("acme", id, "cancelled").await;
        assert_eq!(house.outcome(id).await.1, "task closed", "{id}");
    }
    let turn = house.turn_of("n-1").await;
    assert_eq!(
        (&turn["state"], &turn["error"]),
        (&json!("aborted"), &json!("task closed"))
    );
    house
        .session_has(json!({"state": "closed", "close_reason": "task_cancelled", "phase": "idle"}))
        .await;
    // Again: nothing is left to end.
    let again = house.post(path, json!({})).await;
    let nothing = json!({"turns": 0, "items": {"cancelled": 0, "carried": 0}, "sessions": 0});
    assert_eq!(again["affected"], nothing);
    assert_eq!(house.calls_are(1).await.len(), 1);
    let (status, _) = house.try_get("/api/orgs/acme/tasks/T-2/cancel").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    second.stop().await;
    house.close().await;
}

/// Its turn is not cut off: it has what it asked for, and finishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_cancels_its_own_task_ends_its_turn() {
    let arguments = json!({"task_id": "T-1", "status": "cancelled"});
    let (house, second, gate) = gated(move || Reply::call("c-1", "task_status", arguments.clone())).await;
    house.said("n-1", "user").await;
    house.calls_are(1).await;
    house.said("n-2", "user").await;
    house.session_has(json!({"queued": 1})).await;
    gate.add_permits(1);
    house.until("acme", "n-1", "delivered").await;
    house.until("acme", "n-2", "cancelled").await;
    let turn = house.turn_of("n-1").await;
    assert_eq!((&turn["state"], &turn["late"]), (&json!("finished"), &json!(true)));
    assert_eq!(
        house.calls_are(2).await.len(),
        2,
        "the result of its call was handed back"
    );
    second.stop().await;
    house.close().await;
}
