//! A scripted agent in place of a model: `POST /v1/responses` in the OpenResponses shape, streamed or not. It lets the
//! whole pipeline run, tools included, on a machine without a model. Its behaviour is [`script`], a pure function of a
//! notification's text and of the tools' results so far.
//!
//! Like a real gateway it keeps one conversation per session key, in memory: a restart loses them. It counts a conversation by its
//! items, and so also one that is sent in full. On request it forgets.

mod request;
mod response;
mod script;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use request::Request;
use response::{Answer, Output};
use script::{Conversation, Next};

const PATH: &str = "/v1/responses";
const SESSION_KEY_HEADER: &str = "x-openclaw-session-key";
const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// At this number all conversations are dropped, so that memory stays bounded.
const CONVERSATIONS_MAX: usize = 10_000;

/// A running demo agent. Dropping it ends it.
pub struct DemoAgent {
    address: SocketAddr,
    server: JoinHandle<()>,
    stop: DropGuard,
}

#[derive(Clone, Default)]
struct Conversations(Arc<Mutex<Memory>>);

#[derive(Default)]
struct Memory {
    /// By session key.
    conversations: HashMap<String, Conversation>,
    /// The turns, by a hash of their texts, that have lost their conversation already.
    forgotten: HashSet<String>,
}

impl DemoAgent {
    /// Listens on `address`; port 0 picks a free one.
    pub async fn start(address: SocketAddr) -> anyhow::Result<DemoAgent> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("could not listen on {address}"))?;
        let address = listener.local_addr().context("a bound listener has an address")?;
        let router = Router::new()
            .route(PATH, post(respond))
            // For supervisors: it has no dependencies, so it is ready when it answers.
            .route("/readyz", get(|| async { "ok\n" }))
            .with_state(Conversations::default());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let server = tokio::spawn(async move {
            let serving = axum::serve(listener, router).with_graceful_shutdown(stopped.cancelled_owned());
            if let Err(error) = serving.await {
                tracing::error!(%error, "the demo agent stopped serving");
            }
        });
        Ok(DemoAgent {
            address,
            server,
            stop: stop.drop_guard(),
        })
    }

    /// The URL for `POST` requests.
    pub fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// Lets running responses end, then ends.
    pub async fn stop(self) {
        drop(self.stop);
        if let Err(error) = self.server.await {
            tracing::error!(%error, "the demo agent failed while stopping");
        }
    }
}

async fn respond(State(conversations): State<Conversations>, headers: HeaderMap, body: Bytes) -> Response {
    let header = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .filter(|value| !value.is_empty())
    };
    let request = match Request::read(&body) {
        Ok(request) => request,
        Err(message) => return refuse(&message),
    };
    let idempotency_key = header(IDEMPOTENCY_HEADER).unwrap_or_default();
    // Without a key every request is a conversation of its own.
    let key = header(SESSION_KEY_HEADER)
        .map(str::to_owned)
        .or_else(|| request.user.clone());
    let Some((answer, takes)) = conversations.answer(key.as_deref(), idempotency_key, &request) else {
        let error =
            json!({"message": "starting", "type": "server_error", "param": null, "code": "service_unavailable"});
        return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": error }))).into_response();
    };
    // A caller that closes the connection ends the answer here.
    tokio::time::sleep(takes).await;
    if request.is_streamed {
        let events = answer.events().into_iter().chain([Event::default().data("[DONE]")]);
        Sse::new(stream::iter(events.map(Ok::<_, Infallible>))).into_response()
    } else {
        Json(answer.completed()).into_response()
    }
}

fn refuse(message: &str) -> Response {
    let error = json!({"message": message, "type": "invalid_request_error", "param": null, "code": null});
    (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response()
}

impl Conversations {
    /// None: it has just forgotten the conversation.
    fn answer<'r>(
        &self,
        key: Option<&str>,
        idempotency_key: &str,
        request: &'r Request,
    ) -> Option<(Answer<'r>, Duration)> {
        let mut conversation = key.map(|key| self.take(key)).unwrap_or_default();
        conversation.hear(&request.items);
        if conversation.forgets() && self.memory().forgotten.insert(id("turn", &[conversation.text()])) {
            return None;
        }
        let key_text = key.unwrap_or_default();
        let output = match conversation.next(&request.tools) {
            Next::Call(call) => {
                // A repeated request gives its calls the same ids, so that a repeated effect is recognised.
                let call_id = id("call", &[key_text, conversation.text(), &call.step.to_string()]);
                Output::Call {
                    call_id,
                    name: call.name,
                    arguments: call.arguments.to_string(),
                }
            }
            Next::Say(text) => Output::Message(text),
        };
        let step = conversation.results().to_string();
        let response_id = id("resp", &[key_text, idempotency_key, conversation.text(), &step]);
        let takes = conversation.takes();
        if let Some(key) = key {
            self.keep(key, conversation);
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let answer = Answer {
            response_id,
            created_at: since_epoch.as_secs(),
            request,
            output,
        };
        Some((answer, takes))
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, key: &str) -> Conversation {
        self.memory().conversations.remove(key).unwrap_or_default()
    }

    fn keep(&self, key: &str, conversation: Conversation) {
        let mut memory = self.memory();
        if memory.conversations.len() >= CONVERSATIONS_MAX {
            *memory = Memory::default();
        }
        memory.conversations.insert(key.to_owned(), conversation);
    }
}

/// Derived from its arguments only.
fn id(prefix: &str, parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_le_bytes());
        digest.update(part.as_bytes());
    }
    format!("{prefix}_{}", hex::encode(&digest.finalize()[..12]))
}
