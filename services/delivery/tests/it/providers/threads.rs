//! The threads of a gateway, recorded with the driver's own requests: which keys share a memory, and what is left of a
//! thread that its operator deleted or reset.

use delivery::providers::{Driver, ProviderCall, SessionCheck, ThreadCheck};
use domain::ContextReason;
use serde_json::{Value, json};
use testkit::Reply;
use uuid::Uuid;

use super::{
    called, driver, message,
    recording::Recording,
    stub::{Act, Stub},
};
use crate::scene::Scene;

/// Recordings used here.
pub(super) const RECORDINGS: [&str; 13] = [
    "m01-branch-key-1",
    "m01-branch-key-2",
    "m01-branch-key-history",
    "m02-thread-plain",
    "m02-thread-plain-again",
    "m02-thread-t2",
    "m02-thread-t2-history",
    "m03-history-before",
    "m03-history-gone",
    "m03-history-gone-next",
    "m03-history-there",
    "m04-history-reset",
    "m04-history-reset-next",
];

const BRANCH: &str = "branch:0190aaaa-bbbb-7ccc-8ddd-eeeeffff0005:agent:0190aaaa-bbbb-7ccc-8ddd-eeeeffff0002:acme:v1";
const TASK: &str = "task:t-1:agent:0190aaaa-bbbb-7ccc-8ddd-eeeeffff0002:acme:v1";
const TASK_T2: &str = "task:t-1:agent:0190aaaa-bbbb-7ccc-8ddd-eeeeffff0002:acme:v1:t2";
const DELETED: &str = "task:t-9:agent:0190aaaa-bbbb-7ccc-8ddd-eeeeffff0002:acme:v1";
const RESET: &str = "task:t-8:agent:0190aaaa-bbbb-7ccc-8ddd-eeeeffff0002:acme:v1";

/// The recorded turns: the first under a key tells the code word, the others ask for it.
const TELLS: u8 = 1;
const ASKS: u8 = 3;
const ASKS_AGAIN: u8 = 7;
const CODE_WORD: &str = "NEEDLE-heron";

fn gateway(stub: &Stub) -> Driver {
    driver("openclaw", stub, json!({"stream": false}))
}

/// The call that was recorded for this turn under this key.
fn call(session_key: &str, turn: u8) -> ProviderCall {
    let text = match turn {
        TELLS => format!("The code word is {CODE_WORD}. MOCK:say noted"),
        _ => "What is the code word? MOCK:seen".to_owned(),
    };
    ProviderCall {
        turn_id: Uuid::from_u128(0x0190_aaaa_bbbb_7ccc_8ddd_eeee_ffff_0000 + u128::from(turn)),
        session_key: session_key.to_owned(),
        instructions: None,
        tools: [].into(),
        ..message(&text)
    }
}

/// Makes a recorded call: the driver's request is the recorded one. Gives the answer's text.
async fn posted(name: &str, session_key: &str, turn: u8) -> String {
    let recording = Recording::load(name);
    let stub = Stub::start([recording.script()]).await;
    let answer = called(&gateway(&stub), &call(session_key, turn)).await.0.unwrap();
    let seen = stub.seen().remove(0);
    assert_eq!(seen.line, format!("POST {} HTTP/1.1", recording.request_path), "{name}");
    let header = "x-openclaw-session-key";
    assert_eq!(seen.header(header), recording.request_header(header), "{name}");
    let body: Value = serde_json::from_str(&recording.request_body).unwrap();
    assert_eq!(seen.json(), body, "{name}");
    answer.text
}

/// What the model got with a recorded call that asks for the code word: how many messages of users, and whether the
/// word is in them.
async fn known(name: &str, session_key: &str, turn: u8) -> (usize, bool) {
    let told: Value = serde_json::from_str(&posted(name, session_key, turn).await).unwrap();
    // The gateway names a session to the model as it stores it, with the session's first message alone.
    let first = told["users"][0].as_str().unwrap();
    assert!(
        first.contains(&format!(" session=agent:alpha:{session_key} |")),
        "{name}: {first}"
    );
    let is_known = told["needles"].as_array().unwrap().contains(&json!(CODE_WORD));
    assert_eq!(is_known, first.contains(CODE_WORD), "{name}");
    (told["users"].as_array().unwrap().len(), is_known)
}

async fn session_check(name: &str, call: &ProviderCall) -> SessionCheck {
    let recording = Recording::load(name);
    let stub = Stub::start([recording.script()]).await;
    let checked = gateway(&stub).session_check(call).await;
    if matches!(checked, SessionCheck::Confirmed) {
        assert_eq!(stub.seen()[0].line, format!("GET {} HTTP/1.1", recording.request_path));
    }
    checked
}

async fn thread_check(name: &str, session_key: &str) -> ThreadCheck {
    let recording = Recording::load(name);
    let stub = Stub::start([recording.script()]).await;
    let checked = gateway(&stub).thread_check(&call(session_key, ASKS)).await;
    assert_eq!(stub.seen()[0].line, format!("GET {} HTTP/1.1", recording.request_path));
    checked
}

#[tokio::test]
async fn a_branch_s_key_is_taken_unchanged() {
    assert_eq!(posted("m01-branch-key-1", BRANCH, TELLS).await, "noted");
    assert_eq!(known("m01-branch-key-2", BRANCH, ASKS).await, (2, true));
    for turn in [TELLS, ASKS] {
        let checked = session_check("m01-branch-key-history", &call(BRANCH, turn)).await;
        assert!(matches!(checked, SessionCheck::Confirmed), "{checked:?}");
    }
}

#[tokio::test]
async fn a_second_thread_of_a_session_has_a_memory_of_its_own() {
    assert_eq!(posted("m02-thread-plain", TASK, TELLS).await, "noted");
    assert_eq!(known("m02-thread-t2", TASK_T2, ASKS).await, (1, false));
    assert_eq!(known("m02-thread-plain-again", TASK, ASKS_AGAIN).await, (2, true));

    let name = "m02-thread-t2-history";
    let checked = session_check(name, &call(TASK_T2, ASKS)).await;
    assert!(matches!(checked, SessionCheck::Confirmed), "{checked:?}");
    for foreign in [call(TASK_T2, TELLS), call(TASK, ASKS)] {
        let checked = session_check(name, &foreign).await;
        assert!(matches!(checked, SessionCheck::RanElsewhere { .. }), "{checked:?}");
    }
}

#[tokio::test]
async fn a_deleted_thread_is_gone_and_its_key_begins_an_empty_one() {
    assert_eq!(posted("m03-history-before", DELETED, TELLS).await, "noted");
    assert_eq!(thread_check("m03-history-there", DELETED).await, ThreadCheck::There);
    assert_eq!(thread_check("m03-history-gone", DELETED).await, ThreadCheck::Gone);
    // Without the check, the turn runs as if nothing was lost.
    assert_eq!(known("m03-history-gone-next", DELETED, ASKS).await, (1, false));
}

/// A reset keeps the session and empties it. The check asks whether the session is there, so it does not see the loss.
#[tokio::test]
async fn a_reset_thread_is_empty_and_gone() {
    assert_eq!(thread_check("m04-history-reset", RESET).await, ThreadCheck::Gone);
    assert_eq!(known("m04-history-reset-next", RESET, ASKS).await, (1, false));
}

/// Delivery finds the deleted thread before the turn, and tells the whole past in a new one.
#[tokio::test]
async fn a_turn_after_a_deletion_starts_afresh() {
    let mut scene = Scene::with(|_| Reply::text("not asked")).await;
    let [told, gone, afresh] =
        ["m03-history-before", "m03-history-gone", "m02-thread-t2"].map(|name| Recording::load(name).script());
    // The checks of the session after the first turn of either thread get no answer, which says nothing.
    let unanswered = || vec![Act::Close];
    let stub = Stub::start([told, unanswered(), gone, afresh, unanswered()]).await;
    for (setting, value) in [
        ("kind", "openclaw"),
        ("server", "openclaw"),
        ("model", "openclaw/alpha"),
        ("effects", "gateway_only"),
        ("thread_check_after_ms", "1"),
    ] {
        scene.world.set(&format!("providers.default.{setting}"), value);
    }
    let url = format!("http://{}/v1/responses", stub.address());
    scene.world.set("providers.default.url", &url);
    let running = scene.run().await;
    for (id, body) in [("n-1", "Tests fail on main"), ("n-2", "They fail again")] {
        scene.enqueue(id, body).await;
        scene.wake().await;
        scene.until(id, "delivered").await;
    }
    running.stop().await;

    let seen = stub.seen();
    let posts: Vec<_> = seen.iter().filter(|seen| seen.line.starts_with("POST")).collect();
    assert_eq!(posts.len(), 2, "the lost thread gets no call");
    let key = format!("agent:alpha:{}", scene.key);
    let keys: Vec<_> = posts
        .iter()
        .map(|post| post.header("x-openclaw-session-key").unwrap().to_owned())
        .collect();
    assert_eq!(keys, [key.clone(), format!("{key}:t2")]);
    let check = format!("GET /sessions/{}/history?limit=1 HTTP/1.1", key.replace(':', "%3A"));
    assert_eq!(seen.iter().filter(|seen| seen.line == check).count(), 1);
    let input = posts[1].json()["input"].to_string();
    for past in ["Tests fail on main", "noted", "They fail again"] {
        assert!(input.contains(past), "{past}: {input}");
    }
    let lost = ContextReason::ThreadLost.to_string();
    assert_eq!(scene.turns("context ->> 'reason'").await[1], lost);
    assert_eq!(scene.turns("state").await, ["finished", "finished"]);
}
