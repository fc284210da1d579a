//! A provider that answers as a script says, well or badly, and logs what it saw in the order in which it saw it.
//! It speaks the OpenResponses shape over real HTTP. The log is what checks stand on: what reached the provider, under
//! which key, and whether two calls of one key were ever in flight at once.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
    routing::post,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};

/// One request, as the provider saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Place among all requests, from 0.
    pub order: usize,
    /// Place among the requests of this session key, from 0.
    pub nth_of_key: usize,
    pub key: String,
    pub idempotency_key: String,
    pub traceparent: String,
    pub body: Value,
}

impl Seen {
    /// All text of `input`, and of `instructions` before it.
    pub fn text(&self) -> String {
        format!(
            "{}\n{}",
            self.body["instructions"].as_str().unwrap_or_default(),
            self.input()
        )
    }

    /// The text of `input`: a plain text, or every text in its items.
    pub fn input(&self) -> String {
        fn texts(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::String(text) => found.push(text.clone()),
                Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
                Value::Object(fields) => {
                    for name in ["content", "text", "output"] {
                        if let Some(value) = fields.get(name) {
                            texts(value, found);
                        }
                    }
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        let mut found = Vec::new();
        texts(&self.body["input"], &mut found);
        found.join("\n")
    }

    /// Outputs of function calls that came back, by call id.
    pub fn tool_outputs(&self) -> Vec<(String, String)> {
        let items = self.body["input"].as_array().cloned().unwrap_or_default();
        items
            .iter()
            .filter(|item| item["type"] == "function_call_output")
            .map(|item| {
                (
                    item["call_id"].as_str().unwrap_or_default().to_owned(),
                    item["output"].as_str().unwrap_or_default().to_owned(),
                )
            })
            .collect()
    }
}

/// What the provider does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    Text(String),
    /// Function calls: id, name, arguments.
    Calls(Vec<(String, String, Value)>),
    /// An HTTP status with a body and headers.
    Status(u16, String, Vec<(&'static str, String)>),
    /// 200 and a body that is not JSON.
    Malformed,
    /// The stream ends after the first text, without a terminal event.
    CutStream,
    /// Headers, then silence for ever.
    Silence,
    /// A text of this many bytes.
    Huge(usize),
    /// Waits for a permit of the gate, then does the rest.
    Gated(Arc<Semaphore>, Box<Reply>),
    /// Waits, then does the rest.
    After(Duration, Box<Reply>),
}

impl Reply {
    pub fn text(text: &str) -> Reply {
        Reply::Text(text.to_owned())
    }

    pub fn call(id: &str, name: &str, arguments: Value) -> Reply {
        Reply::Calls(vec![(id.to_owned(), name.to_owned(), arguments)])
    }
}

type Script = dyn Fn(&Seen) -> Reply + Send + Sync;

#[derive(Default)]
struct Log {
    seen: Vec<Seen>,
    in_flight: HashMap<String, usize>,
    overlaps: Vec<String>,
}

struct Shared {
    script: Box<Script>,
    log: Mutex<Log>,
}

pub struct StubProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl StubProvider {
    /// Starts on a free loopback port.
    pub async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> StubProvider {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free loopback port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            script: Box::new(script),
            log: Mutex::default(),
        });
        let router = Router::new()
            .route("/v1/responses", post(respond))
            .with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            axum::serve(listener, router)
                .await
                .expect("the stub serves until it is dropped");
        });
        StubProvider {
            address,
            shared,
            server,
        }
    }

    /// Answers everything with one text.
    pub async fn answering(text: &'static str) -> StubProvider {
        StubProvider::start(move |_| Reply::text(text)).await
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1/responses", self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.log().seen.clone()
    }

    /// Requests of one session key, in order.
    pub fn seen_of(&self, key: &str) -> Vec<Seen> {
        self.log().seen.iter().filter(|seen| seen.key == key).cloned().collect()
    }

    /// Session keys that had two requests in flight at once: there must be none.
    pub fn overlaps(&self) -> Vec<String> {
        self.log().overlaps.clone()
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.shared.log.lock().expect("no holder panics")
    }
}

impl Drop for StubProvider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Counts a request as in flight until its response was sent or dropped.
struct InFlight {
    shared: Arc<Shared>,
    key: String,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Ok(mut log) = self.shared.log.lock()
            && let Some(count) = log.in_flight.get_mut(&self.key)
        {
            *count -= 1;
        }
    }
}

async fn respond(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let key = text("x-openclaw-session-key");
    let (seen, flight) = {
        let mut log = shared.log.lock().expect("no holder panics");
        let nth_of_key = log.seen.iter().filter(|seen| seen.key == key).count();
        let seen = Seen {
            order: log.seen.len(),
            nth_of_key,
            key: key.clone(),
            idempotency_key: text("idempotency-key"),
            traceparent: text("traceparent"),
            body,
        };
        log.seen.push(seen.clone());
        let count = log.in_flight.entry(key.clone()).or_default();
        *count += 1;
        if *count > 1 {
            log.overlaps.push(key.clone());
        }
        (
            seen,
            InFlight {
                shared: Arc::clone(&shared),
                key,
            },
        )
    };
    let mut reply = (shared.script)(&seen);
    loop {
        reply = match reply {
            Reply::Gated(gate, then) => {
                gate.acquire().await.expect("a gate is never closed").forget();
                *then
            }
            Reply::After(pause, then) => {
                tokio::time::sleep(pause).await;
                *then
            }
            other => return send(&seen, other, flight),
        };
    }
}

fn send(seen: &Seen, reply: Reply, flight: InFlight) -> Response {
    let streamed = seen.body["stream"] == true;
    match reply {
        Reply::Text(text) => answer(seen, &text, &[], streamed, flight),
        Reply::Huge(bytes) => answer(seen, &"x".repeat(bytes), &[], streamed, flight),
        Reply::Calls(calls) => answer(seen, "", &calls, streamed, flight),
        Reply::Status(status, body, headers) => {
            let mut response = whole(
                StatusCode::from_u16(status).expect("a status"),
                "application/json",
                body,
                flight,
            );
            for (name, value) in headers {
                response.headers_mut().insert(
                    HeaderName::from_static(name),
                    HeaderValue::from_str(&value).expect("a header value"),
                );
            }
            response
        }
        Reply::Malformed => whole(StatusCode::OK, "application/json", "{\"id\": ".to_owned(), flight),
        Reply::CutStream => {
            let first = event("response.output_text.delta", &json!({"delta": "half an ans"}));
            stream(vec![first], flight, false)
        }
        Reply::Silence => stream(Vec::new(), flight, true),
        Reply::Gated(..) | Reply::After(..) => unreachable!("waited for above"),
    }
}

fn answer(seen: &Seen, text: &str, calls: &[(String, String, Value)], streamed: bool, flight: InFlight) -> Response {
    let id = format!("resp_{}", seen.order);
    let mut output = Vec::new();
    if !text.is_empty() {
        output.push(
            json!({"type": "message", "id": format!("msg_{}", seen.order), "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}]}),
        );
    }
    for (call_id, name, arguments) in calls {
        output.push(
            json!({"type": "function_call", "id": format!("fc_{call_id}"), "call_id": call_id, "name": name,
            "arguments": arguments.to_string(), "status": "completed"}),
        );
    }
    let response = json!({"id": id, "object": "response", "created_at": 1, "status": "completed", "model": "stub", "output": output,
        "usage": {"input_tokens": 42, "output_tokens": 11, "total_tokens": 53}});
    if !streamed {
        return whole(StatusCode::OK, "application/json", response.to_string(), flight);
    }
    let mut events = vec![event(
        "response.created",
        &json!({"response": {"id": id, "status": "in_progress", "output": []}}),
    )];
    for piece in text.split_inclusive(' ') {
        events.push(event(
            "response.output_text.delta",
            &json!({"output_index": 0, "content_index": 0, "delta": piece}),
        ));
    }
    for (index, item) in output.iter().enumerate() {
        events.push(event(
            "response.output_item.done",
            &json!({"output_index": index, "item": item}),
        ));
    }
    events.push(event("response.completed", &json!({"response": response})));
    events.push("data: [DONE]\n\n".to_owned());
    stream(events, flight, false)
}

fn event(kind: &str, fields: &Value) -> String {
    let mut data = fields.clone();
    data["type"] = json!(kind);
    format!("event: {kind}\ndata: {data}\n\n")
}

fn whole(status: StatusCode, kind: &'static str, body: String, flight: InFlight) -> Response {
    drop(flight);
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, kind)
        .body(Body::from(body))
        .expect("a valid response")
}

/// Sends the events one chunk each; `open` keeps the connection open afterwards.
fn stream(events: Vec<String>, flight: InFlight, open: bool) -> Response {
    let chunks = futures::stream::iter(events.into_iter().map(|event| Ok::<_, Infallible>(Bytes::from(event))));
    let end = futures::stream::once(async move {
        if open {
            std::future::pending::<()>().await;
        }
        drop(flight);
        Ok(Bytes::new())
    });
    let body = Body::from_stream(futures::StreamExt::chain(chunks, end));
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .body(body)
        .expect("a valid response")
}
