//! The public guarantees, each tested once over NATS and HTTP: a notification becomes a turn, the same notification again
//! changes nothing, an invalid one is refused with a reason, a task that is done and reopened gets a new session, and no key
//! reads another account.
//!
//! The scenario uses unique names and removes its agent, so that it can run on a deployment in use; it works with any
//! provider.

use std::env;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use signalbox_testcontainers::{Client, Signalbox};
use uuid::Uuid;

use crate::{bus::Bus, wait::eventually};

const ACCOUNT: &str = "signalbox-smoke";
const OTHER: &str = "signalbox-smoke-other";

fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_public_scenario() {
    if let Some(url) = set("SIGNALBOX_TARGET") {
        let token = set("SIGNALBOX_OPERATOR_TOKEN").expect("SIGNALBOX_OPERATOR_TOKEN of the target");
        let bus = match set("NATS_URL") {
            Some(url) => Some(Bus::connect(&url).await),
            None => None,
        };
        Box::pin(walk(&Client::new(&url, &token), bus.as_ref())).await;
        return;
    }
    let signalbox = Box::pin(Signalbox::start()).await.unwrap();
    let bus = Bus::connect(&signalbox.nats_url()).await;
    Box::pin(walk(&signalbox.client(), Some(&bus))).await;
}

/// Over NATS if its address is known, else over HTTP.
async fn publish(client: &Client, bus: Option<&Bus>, task: &str, notification: &Value) {
    match bus {
        Some(bus) => bus.publish(ACCOUNT, task, notification).await,
        None => {
            let mut notification = notification.clone();
            notification["task"] = task.into();
            client.notify(ACCOUNT, &notification).await.unwrap();
        }
    }
}

async fn walk(client: &Client, bus: Option<&Bus>) {
    let run = Uuid::now_v7().simple().to_string();
    let (slug, task) = (format!("smoke-{run}"), format!("SMOKE-{run}"));
    let id = |number: usize| format!("smoke-{run}-{number}");
    client.account(ACCOUNT).await.unwrap();
    let agent = client.agent(ACCOUNT, &slug).await.unwrap();
    let agent = agent["id"].as_str().unwrap();
    client.task(ACCOUNT, &task).await.unwrap();
    let of_task = format!("/api/orgs/{ACCOUNT}/tasks/{task}");
    let key = |generation: usize| {
        let task = task.to_lowercase();
        format!("task:{task}:agent:{agent}:{ACCOUNT}:v{generation}")
    };

    // A notification becomes a turn, which the API shows whole; its reply is in the thread.
    let first =
        json!({"id": id(1), "agent": slug, "title": "Smoke test", "body": "Nothing needs to be done: say hello."});
    publish(client, bus, &task, &first).await;
    let delivered = client.until(ACCOUNT, &id(1), "delivered").await.unwrap();
    assert_eq!(delivered["session_key"], key(1));
    let turn = format!("/api/orgs/{ACCOUNT}/turns/{}", delivered["turn_id"].as_str().unwrap());
    let turn = client.get(&turn).await.unwrap();
    assert_eq!(turn["state"], "finished");
    assert_eq!(turn["notifications"], json!([id(1)]));
    eventually("the reply is posted", || async {
        let messages = client.get(&format!("{of_task}/messages")).await.unwrap();
        let found = messages["items"].as_array().unwrap().iter();
        let mut found = found.filter(|message| message["author"]["id"] == agent);
        found.next().map(|message| assert_eq!(message["body"], turn["reply"]))
    })
    .await;

    // The same id again is a duplicate. The next notification, over HTTP, is the second turn of the same session.
    publish(client, bus, &task, &first).await;
    let second =
        json!({"id": id(2), "task": task, "agent": slug, "title": "Smoke test", "body": "And once more: say hello."});
    client.notify(ACCOUNT, &second).await.unwrap();
    let delivered_again = client.until(ACCOUNT, &id(2), "delivered").await.unwrap();
    assert_eq!(delivered_again["session_id"], delivered["session_id"]);
    let session = delivered["session_id"].as_str().unwrap();
    let turns = client
        .get(&format!("/api/orgs/{ACCOUNT}/sessions/{session}/turns"))
        .await
        .unwrap();
    assert_eq!(turns["items"].as_array().unwrap().len(), 2, "{turns}");

    // An invalid notification is refused, and its state shows the reason.
    let nobody = json!({"id": id(3), "agent": format!("nobody-{run}"), "body": "x"});
    publish(client, bus, &task, &nobody).await;
    let refused = client.until(ACCOUNT, &id(3), "refused").await.unwrap();
    let reason = refused["reason"].as_str().unwrap();
    assert!(reason.starts_with("unknown_agent: "), "{refused}");
    let letters = client
        .get(&format!("/api/orgs/{ACCOUNT}/dead-letters?limit=100"))
        .await
        .unwrap();
    let letters = letters["items"].as_array().unwrap();
    let found = letters
        .iter()
        .any(|letter| letter["payload"].to_string().contains(&id(3)));
    assert!(found, "the dead letters have it");

    // The task is done and reopened: the next notification opens the next session.
    for status in ["done", "in_progress"] {
        client.patch(&of_task, &json!({"status": status})).await.unwrap();
    }
    let third = json!({"id": id(4), "agent": slug, "title": "Smoke test", "body": "Taken up again: say hello."});
    publish(client, bus, &task, &third).await;
    let reopened = client.until(ACCOUNT, &id(4), "delivered").await.unwrap();
    assert_eq!(reopened["session_key"], key(2));

    // Another account's key gets the answer for a missing object.
    client.account(OTHER).await.unwrap();
    let keys = format!("/api/orgs/{OTHER}/keys");
    let other = client
        .post(&keys, &json!({"name": run, "role": "admin"}))
        .await
        .unwrap();
    let stranger = client.with_token(other["key"].as_str().unwrap());
    for path in [of_task.clone(), format!("/api/orgs/{ACCOUNT}/notifications/{}", id(1))] {
        let (status, _) = stranger.send(Method::GET, &path, None).await.unwrap();
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    client
        .delete(&format!("{keys}/{}", other["id"].as_str().unwrap()))
        .await
        .unwrap();
    client
        .delete(&format!("/api/orgs/{ACCOUNT}/agents/{slug}"))
        .await
        .unwrap();
}
