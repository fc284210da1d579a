//! The sender that an agent is shown: the prompt of each turn, for every way in.

use serde_json::{Value, json};
use testkit::{Reply, eventually};

use crate::house::House;

/// The `From:` of the input of the turn that took the notification.
async fn from(house: &House, id: &str) -> String {
    house.until("acme", id, "delivered").await;
    let seen = house.provider.seen();
    let input = seen
        .iter()
        .map(testkit::Seen::input)
        .find(|input| input.starts_with(&format!("Notification: \"{id}\"\n")))
        .expect("a delivered notification was sent to the provider");
    let line = input.lines().find_map(|line| line.strip_prefix("From: "));
    line.expect("an input says who it is from").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_says_whose_word_a_sender_is() {
    let house = House::open(|_| Reply::text("done")).await;
    house.account("acme").await;
    let coder = house.agent("acme", "coder").await;
    house.task("acme", "T-1", &[]).await;
    let publish = async |id: &str, sender: Value| {
        house
            .publish(
                "acme",
                "T-1",
                json!({"id": id, "agent": "coder", "body": "b", "sender": sender}),
            )
            .await;
    };
    publish("nobody", Value::Null).await;
    publish(
        "a-person",
        json!({"kind": "user", "id": "u-1", "name": "A person", "via": "Operator"}),
    )
    .await;
    publish("a-service", json!({"kind": "service", "id": "ci", "name": "CI"})).await;
    publish("an-agent", json!({"kind": "agent", "id": coder, "name": "Coder"})).await;
    publish(
        "the-operator",
        json!({"kind": "user", "id": "operator", "name": "Operator"}),
    )
    .await;
    assert_eq!(from(&house, "nobody").await, r#"service "publisher" (id "publisher")"#);
    assert_eq!(
        from(&house, "a-person").await,
        r#"service "publisher", on behalf of user "A person" (id "u-1")"#
    );
    assert_eq!(
        from(&house, "a-service").await,
        r#"service "CI" (id "ci"), as service "publisher" says"#
    );
    for id in ["an-agent", "the-operator"] {
        let refused = house.until("acme", id, "refused").await;
        assert!(refused["reason"].as_str().unwrap().contains("sender: "), "{refused}");
    }
    let shown = house.notification("acme", "a-person").await;
    assert_eq!(
        shown["sender"],
        json!({"kind": "user", "id": "u-1", "name": "A person", "via": "publisher"})
    );

    // A service signs a redrive, which does not confirm the sender that a publisher claimed.
    let letters = house.get("/api/orgs/acme/dead-letters").await;
    let letters = letters["items"].as_array().unwrap();
    assert_eq!(letters.len(), 2);
    for letter in letters {
        let letter = letter["id"].as_str().unwrap();
        house
            .post(&format!("/api/orgs/acme/dead-letters/{letter}/redrive"), json!({}))
            .await;
    }
    eventually("both are refused again", || async {
        let letters = house.get("/api/orgs/acme/dead-letters").await;
        (letters["items"].as_array().unwrap().len() == 4).then_some(())
    })
    .await;
    assert_eq!(house.notification("acme", "an-agent").await["state"], "refused");

    // The operator, authenticated.
    let own = json!({"task": "T-1", "id": "signed-in", "agent": "coder", "body": "b"});
    house.post("/api/orgs/acme/notifications", own).await;
    assert_eq!(from(&house, "signed-in").await, r#"user "Operator" (id "operator")"#);
    house.close().await;
}
