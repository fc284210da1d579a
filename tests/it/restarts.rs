//! Every service is killed and restarted, messages are repeated and reordered, and the result is the same, once.

use contracts::{Headers, Outgoing, header};
use futures::TryStreamExt;
use reqwest::Method;
use serde_json::json;
use storage::Role;
use testkit::eventually;

use crate::{
    house::House,
    orchestrators::{as_person, person},
    same_end::{assert_end, furnished},
};

const ROLES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_service_dies_in_turn_while_work_goes_on() {
    let mut house = furnished(&[]).await;
    let count = 24;
    for n in 0..count {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
        if n % 3 == 2 {
            // Killed at any point of its work.
            house.kill(ROLES[(n / 3) % ROLES.len()]);
            house.up().await;
        }
    }
    assert_end(&house, count).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_dies_at_once_and_the_broker_with_it() {
    let mut house = furnished(&[]).await;
    for n in 0..8 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
    }
    eventually("work is under way", || async {
        (house.provider.seen().len() > 2).then_some(())
    })
    .await;
    for role in ROLES {
        house.kill(role);
    }
    house.world.nats.kill().await.unwrap();
    house.world.nats.restart().await.unwrap();
    house.up().await;
    assert_end(&house, 8).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_comes_twice_and_out_of_order() {
    let house = furnished(&[]).await;
    let bus = house.world.bus().await;
    for n in 0..6 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
    }
    assert_end(&house, 6).await;
    // Every earlier message again, newest first.
    let jetstream = async_nats::jetstream::new(bus.client().clone());
    for stream in [
        "SIGNALBOX_SESSION",
        "SIGNALBOX_TOOL",
        "SIGNALBOX_EVENT",
        "SIGNALBOX_NOTIFICATION",
    ] {
        let mut stream = jetstream.get_stream(stream).await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        for sequence in (1..=last).rev() {
            let Ok(message) = stream.get_raw_message(sequence).await else {
                continue;
            };
            let mut subject = message.subject.to_string();
            if let Some(rest) = subject.strip_prefix("signalbox.partition.") {
                subject = format!("signalbox.notification.{}", rest.split_once('.').unwrap().1);
            }
            let mut headers = Headers::default();
            for (name, values) in message.headers.iter() {
                headers.set(name.as_ref(), values[0].as_str());
            }
            // Another id, so that the broker's deduplication does not drop it.
            headers.set(header::MESSAGE_ID, format!("again-{}", uuid::Uuid::now_v7()));
            let again = Outgoing {
                subject,
                headers,
                payload: message.payload.to_vec(),
            };
            bus.publish_all(&[again]).await.pop().unwrap().unwrap();
        }
    }
    // All messages were read before the end is checked.
    for name in ["SIGNALBOX_SESSION", "SIGNALBOX_TOOL", "SIGNALBOX_EVENT"] {
        eventually(&format!("{name} is read to its end"), || async {
            let stream = jetstream.get_stream(name).await.unwrap();
            let consumers: Vec<_> = stream.consumers().try_collect().await.unwrap();
            let read = |consumer: &async_nats::jetstream::consumer::Info| {
                consumer.num_pending == 0 && consumer.num_ack_pending == 0
            };
            (!consumers.is_empty() && consumers.iter().all(read)).then_some(())
        })
        .await;
    }
    house.notify("acme", "T-1", "coder", "n-6", "x").await;
    assert_end(&house, 7).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_broker_loses_nothing_that_was_accepted() {
    let mut house = furnished(&[]).await;
    house.notify("acme", "T-1", "coder", "n-0", "x").await;
    house.until("acme", "n-0", "delivered").await;
    house.kill(Role::Delivery);
    for n in 1..5 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
        house.until("acme", &format!("n-{n}"), "queued").await;
    }
    for role in ROLES {
        house.kill(role);
    }
    house.world.nats.stop().await.unwrap();
    house.world.nats.wipe_store().await.unwrap();
    house.world.nats.restart().await.unwrap();
    house.up().await;
    house.notify("acme", "T-1", "coder", "n-5", "x").await;
    assert_end(&house, 6).await;
    house.close().await;
}

/// The parts of the turn on this notification that are of a persona.
async fn persona_parts(house: &House, id: &str) -> Vec<String> {
    house.notify("acme", "T-1", "coder", id, "x").await;
    let item = house.until("acme", id, "delivered").await;
    let turn = format!("/api/orgs/acme/turns/{}", item["turn_id"].as_str().unwrap());
    let parts = house.get(&turn).await["manifest"]["parts"].take();
    let sources = parts
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|part| part["source"].as_str());
    sources
        .filter(|source| source.starts_with("persona/"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_keeps_its_version_of_a_persona_over_a_restart() {
    let mut house = furnished(&[]).await;
    let ann = person(&house, "acme", "ann").await;
    let files = |content: &str| json!([{"filename": "A.md", "content": content}]);
    let careful = json!({"slug": "careful", "name": "Careful", "visibility": "shared", "files": files("Be careful.")});
    as_person(&house, Method::POST, &ann, "/api/orgs/acme/personas", Some(careful)).await;
    let named = json!({"persona": "careful"});
    as_person(&house, Method::PATCH, &ann, "/api/orgs/acme/tasks/T-1", Some(named)).await;
    assert_eq!(persona_parts(&house, "n-0").await, ["persona/careful/1/A.md"]);
    let path = "/api/orgs/acme/personas/careful/files";
    let next = json!({"files": files("Be quick.")});
    as_person(&house, Method::PUT, &ann, path, Some(next)).await;
    for role in ROLES {
        house.kill(role);
    }
    house.up().await;
    assert_eq!(persona_parts(&house, "n-1").await, ["persona/careful/1/A.md"]);
    // The next generation has the newest one.
    let session = house.sessions("acme", "task=T-1&active=true").await.remove(0);
    let reset = format!("/api/orgs/acme/sessions/{}/reset", session["id"].as_str().unwrap());
    house.post(&reset, json!({"reason": "r"})).await;
    assert_eq!(persona_parts(&house, "n-2").await, ["persona/careful/2/A.md"]);
    house.close().await;
}
