//! Edits of what waits, through all services and the public contract: an edited notification is delivered, fails and is redriven
//! with its new text, and a repetition of what was published stays one.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use testkit::{Reply, Seen, eventually};
use tokio::sync::Semaphore;

use crate::house::House;

/// A house whose provider holds its first call until a permit comes, refuses the second, and answers all others.
async fn house() -> (House, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let (script, calls) = (Arc::clone(&gate), AtomicUsize::new(0));
    let house = House::open(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("first"))),
        1 => Reply::Status(400, r#"{"error": {"message": "no"}}"#.to_owned(), Vec::new()),
        _ => Reply::text("ok"),
    })
    .await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    (house, gate)
}

impl House {
    async fn queue_of(&self, waiting: usize) -> Value {
        eventually(&format!("{waiting} notifications wait"), || async {
            let session = self.sessions("acme", "task=T-1").await.pop()?;
            let path = format!("/api/orgs/acme/sessions/{}/queue", session["id"].as_str()?);
            let mut queue = self.get(&path).await;
            queue["path"] = path.into();
            (queue["items"].as_array()?.len() == waiting && queue["running"]["items"][0].is_object()).then_some(queue)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edited_notification_fails_and_is_redriven_with_its_new_text() {
    let (house, gate) = house().await;
    house.notify("acme", "T-1", "coder", "n-1", "x").await;
    house.notify("acme", "T-1", "coder", "n-2", "the old text").await;
    let queue = house.queue_of(1).await;
    let running = &queue["running"]["items"][0];
    assert_eq!(
        (&running["id"], &running["why"]["code"]),
        (&json!("n-1"), &json!("running"))
    );
    let path = format!("{}/n-2", queue["path"].as_str().unwrap());
    let edited = house
        .patch(
            &path,
            json!({"revision": 1, "body": "the new text", "title": "changed"}),
        )
        .await;
    assert_eq!(
        (&edited["revision"], &edited["why"]["code"]),
        (&json!(2), &json!("queued"))
    );
    gate.add_permits(1);
    house.until("acme", "n-2", "failed").await;
    let letters = house.get("/api/orgs/acme/dead-letters").await;
    let letter = &letters["items"][0];
    let payload = letter["payload"].as_str().unwrap();
    assert!(
        payload.contains("the new text") && !payload.contains("the old text"),
        "{payload}"
    );
    house
        .post(
            &format!("/api/orgs/acme/dead-letters/{}/redrive", letter["id"].as_str().unwrap()),
            json!({}),
        )
        .await;
    let delivered = house.until("acme", "n-2", "delivered").await;
    assert_eq!(
        (&delivered["body"], &delivered["revision"]),
        (&json!("the new text"), &json!(3))
    );
    let inputs: Vec<String> = house.provider.seen().iter().map(Seen::input).collect();
    assert!(
        inputs[1].contains("the new text") && inputs[2].contains("the new text"),
        "{inputs:?}"
    );

    // What was published, once more: known, so no turn and no refusal.
    house.notify("acme", "T-1", "coder", "n-2", "the old text").await;
    house.notify("acme", "T-1", "coder", "n-3", "x").await;
    house.until("acme", "n-3", "delivered").await;
    assert_eq!(house.notification("acme", "n-2").await["state"], "delivered");
    let letters = house.get("/api/orgs/acme/dead-letters").await;
    assert_eq!(letters["items"].as_array().unwrap().len(), 1, "{letters}");
    assert_eq!(house.provider.seen().len(), 4);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_notification_becomes_a_steer_and_its_turn_is_the_next() {
    let (house, _gate) = house().await;
    for id in ["n-1", "n-2", "n-3"] {
        house.notify("acme", "T-1", "coder", id, &format!("body of {id}")).await;
    }
    let queue = house.queue_of(2).await;
    let path = queue["path"].as_str().unwrap();
    let steered = house
        .post(
            &format!("{path}/n-3/steer"),
            json!({"turn_id": queue["running"]["turn_id"]}),
        )
        .await;
    assert_eq!(
        (&steered["queue_mode"], &steered["place"]),
        (&json!("steer"), &json!(1))
    );
    let ended = house.until("acme", "n-1", "cancelled").await;
    assert_eq!(ended["reason"], "steered: by Operator");
    // The second call is refused by the provider, and the third is answered.
    house.until("acme", "n-3", "failed").await;
    house.until("acme", "n-2", "delivered").await;
    let inputs: Vec<String> = house.provider.seen().iter().map(Seen::input).collect();
    assert!(
        inputs[1].contains("body of n-3") && inputs[2].contains("body of n-2"),
        "{inputs:?}"
    );
    house.close().await;
}
