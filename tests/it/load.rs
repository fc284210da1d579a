//! Concurrent work through the whole pipeline: each session's turns in order, every notification once.

use std::collections::HashMap;

use serde_json::json;
use testkit::{Reply, eventually};

use crate::house::House;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_notifications_to_one_session_run_in_order() {
    let house = House::open(|_| Reply::text("ok")).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &[]).await;
    let jetstream = async_nats::jetstream::new(house.world.client().await);
    for n in 0..100 {
        let payload = json!({"id": format!("n-{n:03}"), "agent": "coder", "body": "x"}).to_string();
        jetstream
            .publish("signalbox.notification.acme.T-1", payload.into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    house.until("acme", "n-099", "delivered").await;
    let order = house
        .world
        .database
        .texts("select notification_ids[1] from turn order by number")
        .await;
    assert_eq!(order, (0..100).map(|n| format!("n-{n:03}")).collect::<Vec<_>>());
    assert!(house.provider.overlaps().is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sessions_at_once() {
    // On a machine so busy that leases are lost, repeated calls are correct.
    let house = House::open_with(|_| Reply::text("ok"), &[("replica.lease_ms", "60000")]).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    let jetstream = async_nats::jetstream::new(house.world.client().await);
    let mut acks = Vec::new();
    for n in 0..2_000 {
        let payload = json!({"id": format!("n-{n}"), "agent": "coder", "body": format!("{}", n / 1_000)}).to_string();
        acks.push(
            jetstream
                .publish(format!("signalbox.notification.acme.T-{}", n % 1_000), payload.into())
                .await
                .unwrap(),
        );
    }
    for ack in acks {
        ack.await.unwrap();
    }
    eventually("all are delivered", || async {
        (house
            .world
            .database
            .count("select count(*) from notification where state = 'delivered'")
            .await
            == 2_000)
            .then_some(())
    })
    .await;
    let seen = house.provider.seen();
    assert_eq!(seen.len(), 2_000);
    assert!(house.provider.overlaps().is_empty());
    let mut of_key: HashMap<String, usize> = HashMap::new();
    seen.iter()
        .for_each(|seen| *of_key.entry(seen.key.clone()).or_default() += 1);
    assert_eq!(of_key.len(), 1_000);
    assert!(of_key.values().all(|&count| count == 2));
    assert_eq!(
        house
            .world
            .database
            .count("select count(*) from session where queued <> 0 or phase <> 'idle'")
            .await,
        0
    );
    house.close().await;
}
