//! Turns over an OpenClaw gateway: which calls are resent, and which are first looked up in the session history. The
//! gateway is a stub that keeps a history in the recorded form and loses the first answer.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use testkit::{StubProvider, World, eventually};
use tokio::net::TcpListener;

use crate::scene::Scene;

/// How the gateway handles its first request, which it never answers.
#[derive(Clone, Copy, PartialEq)]
enum First {
    RunsAndLosesTheAnswer,
    NeverBegins,
    BeginsAndSaysNothing,
    AnswersFromAnotherSession,
    /// The turn runs, and its answer is never sent.
    RunsAndHoldsTheAnswer,
}

#[derive(Default)]
struct History {
    posts: Vec<(String, Value)>,
    /// Rows of the history, by gateway key.
    rows: Vec<(String, Value)>,
}

#[derive(Clone)]
struct Gateway {
    first: First,
    history: Arc<Mutex<History>>,
}

impl Gateway {
    async fn start(first: First) -> (Gateway, String) {
        let gateway = Gateway {
            first,
            history: Arc::default(),
        };
        let router = Router::new()
            .route("/v1/responses", post(respond))
            .route("/sessions/{key}/history", get(rows))
            .with_state(gateway.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (gateway, format!("http://{address}/v1/responses"))
    }

    fn posts(&self) -> Vec<(String, Value)> {
        self.history.lock().unwrap().posts.clone()
    }
}

fn text_of(body: &Value) -> String {
    body["input"]
        .as_str()
        .map_or_else(|| body["input"].to_string(), str::to_owned)
}

async fn respond(State(gateway): State<Gateway>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let key = headers["x-openclaw-session-key"].to_str().unwrap().to_owned();
    let mut history = gateway.history.lock().unwrap();
    let nth = history.posts.len();
    history.posts.push((key.clone(), body.clone()));
    let user = json!({"role": "user", "content": text_of(&body), "__openclaw": {"id": format!("u{nth}")}});
    let id = format!("resp_{nth}");
    let answer = json!({"role": "assistant", "content": [{"type": "text", "text": format!("answer {nth}")}], "stopReason": "stop",
        "__openclaw": {"runId": id, "id": format!("a{nth}")}});
    if nth == 0 {
        match gateway.first {
            First::RunsAndLosesTheAnswer => history.rows.extend([(key.clone(), user), (key, answer)]),
            First::NeverBegins => {}
            First::BeginsAndSaysNothing => history.rows.push((key, user)),
            First::AnswersFromAnotherSession => {
                let elsewhere = "agent:alpha:openresponses:somewhere".to_owned();
                history.rows.extend([(elsewhere.clone(), user), (elsewhere, answer)]);
                return completed(&id, "answer 0").into_response();
            }
            First::RunsAndHoldsTheAnswer => {
                history.rows.extend([(key.clone(), user), (key, answer)]);
                let never = futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
                return ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(never)).into_response();
            }
        }
        // The stream ends before its answer.
        let begun = format!(
            "event: response.created\ndata: {}\n\n",
            json!({"type": "response.created", "response": {"id": id}})
        );
        return ([(header::CONTENT_TYPE, "text/event-stream")], Body::from(begun)).into_response();
    }
    history.rows.extend([(key.clone(), user), (key, answer)]);
    completed(&id, &format!("answer {nth}")).into_response()
}

fn completed(id: &str, text: &str) -> Json<Value> {
    Json(
        json!({"id": id, "object": "response", "status": "completed", "output": [
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": text}], "status": "completed"}]}),
    )
}

async fn rows(State(gateway): State<Gateway>, Path(key): Path<String>) -> Response {
    let history = gateway.history.lock().unwrap();
    let items: Vec<Value> = history
        .rows
        .iter()
        .filter(|(of, _)| *of == key)
        .map(|(_, row)| row.clone())
        .collect();
    if items.is_empty() {
        let body = json!({"ok": false, "error": {"type": "not_found", "message": format!("Session not found: {key}")}});
        return (StatusCode::NOT_FOUND, Json(body)).into_response();
    }
    Json(json!({"sessionKey": key, "items": items, "messages": items, "hasMore": false})).into_response()
}

/// The scene with a gateway whose records settle at once.
async fn scene(first: First) -> (Scene, Gateway) {
    let (gateway, url) = Gateway::start(first).await;
    let provider = StubProvider::answering("never asked").await;
    let mut world = World::start().await;
    for (setting, value) in [
        ("providers.default.kind", "openclaw"),
        ("providers.default.model", "openclaw/alpha"),
        ("providers.default.url", url.as_str()),
        ("providers.default.history_settle_ms", "300"),
        ("providers.default.history_unanswered_ms_max", "800"),
    ] {
        world.set(setting, value);
    }
    (Scene::of(world, provider).await, gateway)
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_in_the_history_and_nothing_is_sent_again() {
    let (scene, gateway) = scene(First::RunsAndLosesTheAnswer).await;
    scene.enqueue("n-1", "Deploy it").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("state || ' ' || reply").await, ["finished answer 0"]);
    let posts = gateway.posts();
    assert_eq!(posts.len(), 1);
    assert_eq!(posts[0].0, format!("agent:alpha:{}", scene.key));
    let tools = posts[0].1["tools"].to_string();
    assert!(tools.contains("signalbox_task_history"), "{tools}");
    assert!(
        posts[0].1["instructions"]
            .as_str()
            .unwrap()
            .contains("`signalbox_task_history`")
    );
    running.stop().await;
}

/// The next holder knows only that a call may have been sent: it looks the call up before it sends one.
#[tokio::test]
async fn a_call_whose_holder_died_is_looked_up_by_the_next_one_and_not_sent_again() {
    let (scene, gateway) = scene(First::RunsAndHoldsTheAnswer).await;
    scene.enqueue("n-1", "Deploy it").await;
    let first = scene.run().await;
    eventually("the call is in flight", || async {
        (gateway.posts().len() == 1).then_some(())
    })
    .await;
    first.cut_off();
    let second = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(
        scene.turns("state || ' ' || reply || ' ' || fence").await,
        ["finished answer 0 2"]
    );
    assert_eq!(gateway.posts().len(), 1);
    second.stop().await;
}

#[tokio::test]
async fn a_call_that_never_began_is_sent_again() {
    let (scene, gateway) = scene(First::NeverBegins).await;
    scene.enqueue("n-1", "Deploy it").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("state || ' ' || reply").await, ["finished answer 1"]);
    assert_eq!(gateway.posts().len(), 2);
    running.stop().await;
}

#[tokio::test]
async fn a_call_whose_outcome_stays_unknown_is_told_to_the_agent() {
    let (scene, gateway) = scene(First::BeginsAndSaysNothing).await;
    scene.enqueue("n-1", "Deploy it").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    assert_eq!(scene.turns("state").await, ["unknown", "finished"]);
    let posts = gateway.posts();
    assert_eq!(posts.len(), 2);
    assert!(!text_of(&posts[0].1).contains("interrupted") && text_of(&posts[1].1).contains("was interrupted"));
    running.stop().await;
}

#[tokio::test]
async fn a_gateway_that_ran_another_session_is_reported() {
    let (scene, _gateway) = scene(First::AnswersFromAnotherSession).await;
    let client = scene.world.client().await;
    let mut events = client
        .subscribe("signalbox.event.acme.PROJ-7.provider.session_mismatched")
        .await
        .unwrap();
    client.flush().await.unwrap();
    scene.enqueue("n-1", "x").await;
    let running = scene.run().await;
    scene.until("n-1", "delivered").await;
    let mismatch = eventually("the session is marked", || async {
        scene
            .world
            .database
            .texts("select mismatch from session where mismatch is not null")
            .await
            .first()
            .cloned()
    })
    .await;
    assert!(mismatch.contains(&scene.key), "{mismatch}");
    let event: Value = serde_json::from_slice(&futures::StreamExt::next(&mut events).await.unwrap().payload).unwrap();
    assert_eq!(event["type"], "provider.session_mismatched");
    running.stop().await;
}
