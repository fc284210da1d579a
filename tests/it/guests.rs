//! A colleague asks a person's orchestrator, and is answered in a session of their own: nothing of either conversation is in the other.

use std::{collections::BTreeSet, sync::Arc};

use reqwest::Method;
use serde_json::{Value, json};
use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::{
    house::House,
    mail::{arrived, receipt, sent, violations},
    orchestrators::{as_person, asked, person},
};

const GUEST: &str = "orchestrator:acme:ann:guest:ben:v1";

async fn reach(house: &House, key: &str, reachable: &str) {
    let change = json!({"handle": "jarvis", "reachable": reachable});
    let path = "/api/me/orchestrator/identity";
    as_person(house, Method::PUT, key, path, Some(change)).await;
}

async fn refused(house: &House, key: &str, to: &str) {
    let mail = json!({"to": to, "content": "Tell me."});
    let (status, body) = asked(house, Method::POST, key, "/api/messages", Some(mail)).await;
    assert_eq!(
        (status, body["code"].as_str()),
        (409, Some("unknown_recipient")),
        "{body}"
    );
}

/// The open sessions of guests.
async fn open(house: &House) -> Vec<Value> {
    let sessions = house.sessions("acme", "active=true").await;
    sessions
        .into_iter()
        .filter(|session| session["kind"] == "guest")
        .collect()
}

#[tokio::test]
async fn a_colleague_is_answered_in_a_session_of_their_own() {
    let house = House::open(|seen| {
        Reply::text(match seen.key.contains(":guest:") {
            true => "It is on Friday.",
            false => "I shall remember teal.",
        })
    })
    .await;
    house.account("acme").await;
    let (ann, ben) = (person(&house, "acme", "ann").await, person(&house, "acme", "ben").await);
    let prompt = json!({"content": "My colour is teal."});
    let path = "/api/sessions/orchestrator:ann/prompt";
    let prompted = as_person(&house, Method::POST, &ann, path, Some(prompt)).await;
    house
        .until(
            "acme",
            prompted["notification_id"].as_str().expect("an id"),
            "delivered",
        )
        .await;
    refused(&house, &ben, "@jarvis").await;
    reach(&house, &ann, "answer").await;

    let asks = sent(&house, &ben, "@jarvis", "When is the release?").await;
    receipt(&house, &ben, &asks, "answered").await;
    let answer = arrived(&house, &ben, |mail| mail["reply_to"] == asks["id"]).await;
    assert_eq!(
        json!([answer["content"], answer["why"], answer["from"]["session_key"]]),
        json!(["It is on Friday.", "answer", GUEST]),
        "{answer}"
    );
    // Once more, in the same session.
    let asks = sent(&house, &ben, "@jarvis", "Which Friday?").await;
    receipt(&house, &ben, &asks, "answered").await;
    let guests = open(&house).await;
    assert_eq!(guests.len(), 1, "{guests:?}");
    assert_eq!(guests[0]["key"], GUEST, "{guests:?}");

    // Nothing of one is in the other.
    let seen = house.provider.seen();
    let (of_guest, own): (Vec<_>, Vec<_>) = seen.iter().partition(|seen| seen.key.contains(":guest:"));
    assert_eq!((of_guest.len(), own.len()), (2, 1));
    assert!(of_guest.iter().all(|seen| !seen.body.to_string().contains("teal")));
    assert!(own.iter().all(|seen| !seen.body.to_string().contains("release")));
    assert!(of_guest[0].text().contains("You answer a guest"));
    assert!(
        of_guest[0]
            .text()
            .contains("Here you answer another one, `ben`, and nobody else.")
    );
    let chat = as_person(&house, Method::GET, &ann, "/api/me/orchestrator/chat", None).await;
    assert!(
        chat.to_string().contains("teal") && !chat.to_string().contains("release"),
        "{chat}"
    );
    assert_eq!(violations(&house).await, json!([]));

    // The owner sees it, and the guest their own mail; neither writes into it.
    let messages = format!("/api/sessions/{GUEST}/messages");
    let mail = as_person(&house, Method::GET, &ann, &messages, None).await;
    assert_eq!(mail["items"].as_array().map(Vec::len), Some(2), "{mail}");
    let (status, body) = asked(&house, Method::GET, &ben, &messages, None).await;
    assert_eq!(status, 404, "{body}");
    let prompt = format!("/api/sessions/{GUEST}/prompt");
    for (key, expected) in [(&ann, (409, Some("not_promptable"))), (&ben, (404, Some("not_found")))] {
        let (status, body) = asked(&house, Method::POST, key, &prompt, Some(json!({"content": "Hello."}))).await;
        assert_eq!((status, body["code"].as_str()), expected, "{body}");
    }
    let told = json!({"session": GUEST, "body": "Hello."});
    let path = "/api/orgs/acme/notifications";
    for (key, expected) in [(&ann, 409), (&ben, 404)] {
        let (status, body) = asked(&house, Method::POST, key, path, Some(told.clone())).await;
        assert_eq!(status, expected, "{body}");
    }
    let to = json!({"id": "from-nats", "session": GUEST, "body": "Hello."});
    house.publish("acme", "-", to).await;
    let from_nats = house.until("acme", "from-nats", "refused").await;
    assert!(
        from_nats["reason"]
            .as_str()
            .expect("why")
            .starts_with("session_mismatch"),
        "{from_nats}"
    );

    reach(&house, &ann, "off").await;
    assert_eq!(open(&house).await, Vec::<Value>::new());
    refused(&house, &ben, "@jarvis").await;
    // And again, in the next generation.
    reach(&house, &ann, "delegate").await;
    let asks = sent(&house, &ben, "@jarvis", "And now?").await;
    receipt(&house, &ben, &asks, "answered").await;
    assert_eq!(open(&house).await[0]["key"], GUEST.replace(":v1", ":v2"));
    house.close().await;
}

/// The orchestrator of a guest asks, and has the answer as mail that it does not answer by code again.
#[tokio::test]
async fn an_orchestrator_asks_another_one_for_its_person() {
    let house = House::open(|seen| {
        let input = seen.input();
        match (seen.key.contains(":guest:"), seen.tool_outputs().last()) {
            (true, _) => Reply::text("It is on Friday."),
            (false, None) if input.contains("Ask jarvis") => {
                let ask = json!({"to": "@jarvis", "content": "When is the release?"});
                Reply::call(&format!("c-{}", seen.order), "send_message", ask)
            }
            (false, None) if input.contains("It is on Friday.") => Reply::text("On Friday, I hear."),
            (false, _) => Reply::text("I have asked."),
        }
    })
    .await;
    house.account("acme").await;
    let (ann, ben) = (person(&house, "acme", "ann").await, person(&house, "acme", "ben").await);
    reach(&house, &ann, "answer").await;
    let path = "/api/sessions/orchestrator:ben/prompt";
    as_person(
        &house,
        Method::POST,
        &ben,
        path,
        Some(json!({"content": "Ask jarvis."})),
    )
    .await;
    eventually("ben's orchestrator has the answer", || async {
        let chat = as_person(&house, Method::GET, &ben, "/api/me/orchestrator/chat", None).await;
        chat.to_string().contains("On Friday, I hear.").then_some(())
    })
    .await;
    assert_eq!(house.provider.seen_of(GUEST).len(), 1);
    assert_eq!(violations(&house).await, json!([]));
    house.close().await;
}

/// Whatever the mode: what others wrote, and what others read the answer to, has a turn of its own.
#[tokio::test]
async fn a_turn_of_an_orchestrator_takes_words_of_one_kind() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let house = House::open(move |seen| match seen.order {
        0 => Reply::Gated(
            Arc::clone(&script),
            Box::new(Reply::call("c-1", "list_sessions", json!({}))),
        ),
        _ => Reply::text("ok"),
    })
    .await;
    house.account("acme").await;
    let ann = person(&house, "acme", "ann").await;
    let told = async |id: &str, mode: &str, by: Option<&str>, surface: &str| {
        let mut told = json!({"id": id, "session": "orchestrator:ann", "body": id, "queue_mode": mode,
            "channel": {"surface": surface}, "collect_debounce_ms": 0});
        match by {
            Some(key) => {
                let path = format!("{}/api/orgs/acme/notifications", house.api());
                let (status, body) = house.call(Method::POST, path, key, &[], Some(told)).await;
                assert!(status.is_success(), "{body}");
            }
            // Nobody vouches for whom a publisher names.
            None => {
                told["sender"] = json!({"kind": "user", "id": "ann", "name": "Ann"});
                house.publish("acme", "-", told).await;
            }
        }
    };
    told("steers", "steer", None, "private").await;
    house.until("acme", "steers", "refused").await;
    let ann = Some(&*ann);
    told("first", "followup", ann, "private").await;
    eventually("the first call waits", || async {
        (house.provider.seen().len() == 1).then_some(())
    })
    .await;
    let items = [
        ("i-own", "inject", ann, "private"),
        ("i-shared", "inject", ann, "shared"),
        ("c-own", "collect", ann, "private"),
        ("c-foreign", "collect", None, "private"),
        ("c-shared", "collect", ann, "shared"),
    ];
    for (id, mode, by, surface) in items {
        told(id, mode, by, surface).await;
        house.until("acme", id, "queued").await;
    }
    gate.add_permits(1);
    let mut turns = Vec::new();
    for id in ["first", "i-own", "i-shared", "c-own", "c-foreign", "c-shared"] {
        let item = house.until("acme", id, "delivered").await;
        turns.push(item["turn_id"].as_str().expect("a turn").to_owned());
    }
    assert_eq!(turns[0], turns[1], "the person's own word is given to the turn");
    let others: BTreeSet<&String> = turns[1..].iter().collect();
    assert_eq!(others.len(), 5, "{turns:?}");
    house.close().await;
}

/// Whoever is removed leaves no session: neither as an owner nor as a guest.
#[tokio::test]
async fn a_removed_person_is_no_guest_and_has_none() {
    let house = House::open(|_| Reply::text("Yes.")).await;
    house.account("acme").await;
    let ann = person(&house, "acme", "ann").await;
    let mut guests = Vec::new();
    for user in ["ben", "cat"] {
        guests.push(person(&house, "acme", user).await);
    }
    reach(&house, &ann, "answer").await;
    for guest in &guests {
        let asks = sent(&house, guest, "@jarvis", "Are you there?").await;
        receipt(&house, guest, &asks, "answered").await;
    }
    assert_eq!(open(&house).await.len(), 2);
    let remove = async |user: &str| {
        let url = format!("{}/api/orgs/acme/members/{user}", house.api());
        let (status, body) = house
            .call(Method::DELETE, url, testkit::OPERATOR_TOKEN, &[], None)
            .await;
        assert_eq!(status, 204, "{body}");
    };
    remove("ben").await;
    let left: Vec<Value> = open(&house).await.iter().map(|guest| guest["key"].clone()).collect();
    assert_eq!(left, [json!("orchestrator:acme:ann:guest:cat:v1")]);
    remove("ann").await;
    assert_eq!(open(&house).await, Vec::<Value>::new());
    refused(&house, &guests[1], "@jarvis").await;
    house.close().await;
}
