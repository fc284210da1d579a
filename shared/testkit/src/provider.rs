//! A scripted provider, with good and bad answers, that logs its requests in order. It speaks the OpenResponses shape
//! over real HTTP. Tests check the log: the requests, their session keys, and whether two calls of one key were ever in
//! flight at once.

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
    extract::{Path, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};

use crate::server::{Memory, Server, items};

/// One request, as the provider received it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its index among all requests, from 0.
    pub order: usize,
    /// Its index among the requests of this session key, from 0.
    pub nth_of_key: usize,
    /// The session key, or `prompt_cache_key` if there is none.
    pub key: String,
    pub headers: HeaderMap,
    pub idempotency_key: String,
    pub traceparent: String,
    pub body: Value,
    /// The model's input: the items of `input`, after those that the server remembers.
    pub context: Vec<Value>,
    /// Why the server refused it. A refused request does not reach the script.
    pub refused: Option<String>,
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

    /// Returned outputs of function calls, by call id.
    pub fn tool_outputs(&self) -> Vec<(String, String)> {
        let items = self.body["input"].as_array().cloned().unwrap_or_default();
        outputs(&items)
    }
}

/// Outputs of function calls among these items, by call id.
pub fn outputs(items: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    items
        .iter()
        .filter(|item| item["type"] == "function_call_output")
        .map(|item| (text(&item["call_id"]), text(&item["output"])))
        .collect()
}

/// The provider's reaction to a request.
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
    /// The same, with further fields in the response.
    With(Value, Box<Reply>),
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
    memory: Memory,
    /// Requests before it are no longer in the histories of sessions.
    forgotten: usize,
    in_flight: HashMap<String, usize>,
    overlaps: Vec<String>,
}

struct Shared {
    /// None: it accepts everything, remembers nothing, and streams as `Server::Generic` does.
    server: Option<Server>,
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
        StubProvider::begin(None, script).await
    }

    /// The same, imitating a server: its memory, its refusals, its stream.
    pub async fn like(server: Server, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> StubProvider {
        StubProvider::begin(Some(server), script).await
    }

    async fn begin(server: Option<Server>, script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> StubProvider {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free loopback port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let shared = Arc::new(Shared {
            server,
            script: Box::new(script),
            log: Mutex::default(),
        });
        let router = Router::new()
            .route("/v1/responses", post(respond))
            .route("/v1/responses/{id}", get(recorded))
            .route("/sessions/{key}/history", get(history))
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

    /// Answers every request with one text.
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

    /// Forgets every conversation, as a server that has lost its store.
    pub fn forget(&self) {
        let mut log = self.log();
        log.memory = Memory::default();
        log.forgotten = log.seen.len();
    }

    /// Session keys that had two requests in flight at once: must be empty.
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
    let key = match text("x-openclaw-session-key") {
        key if key.is_empty() => body["prompt_cache_key"].as_str().unwrap_or_default().to_owned(),
        key => key,
    };
    let (seen, flight) = {
        let mut log = shared.log.lock().expect("no holder panics");
        let nth_of_key = log.seen.iter().filter(|seen| seen.key == key).count();
        let heard = match shared.server {
            Some(server) => server.hear(&log.memory, &key, &body),
            None => Ok(items(&body["input"])),
        };
        let seen = Seen {
            order: log.seen.len(),
            nth_of_key,
            key: key.clone(),
            idempotency_key: text("idempotency-key"),
            traceparent: text("traceparent"),
            context: heard.as_ref().map_or_else(|_| items(&body["input"]), Clone::clone),
            refused: heard.as_ref().err().map(|refusal| refusal.body.clone()),
            headers,
            body,
        };
        log.seen.push(seen.clone());
        if let Err(refusal) = heard {
            return Response::builder()
                .status(refusal.status)
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(refusal.body))
                .expect("a valid response");
        }
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
            other => return send(&seen, other, flight, &shared),
        };
    }
}

fn send(seen: &Seen, reply: Reply, flight: InFlight, shared: &Shared) -> Response {
    match reply {
        Reply::Text(text) => answer(seen, (&text, &[], &Value::Null), flight, shared),
        Reply::Huge(bytes) => answer(seen, (&"x".repeat(bytes), &[], &Value::Null), flight, shared),
        Reply::Calls(calls) => answer(seen, ("", &calls, &Value::Null), flight, shared),
        Reply::With(fields, reply) => match *reply {
            Reply::Text(text) => answer(seen, (&text, &[], &fields), flight, shared),
            Reply::Calls(calls) => answer(seen, ("", &calls, &fields), flight, shared),
            other => send(seen, other, flight, shared),
        },
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

/// Text, function calls and further fields of a response.
type Answer<'a> = (&'a str, &'a [(String, String, Value)], &'a Value);

fn answer(seen: &Seen, (text, calls, fields): Answer<'_>, flight: InFlight, shared: &Shared) -> Response {
    let server = shared.server.unwrap_or(Server::Generic);
    let response = {
        let mut log = shared.log.lock().expect("no holder panics");
        let output = server.output(&mut log.memory, seen.order, &seen.body, text, calls);
        let mut response = json!({"id": format!("resp_{}", seen.order), "object": "response", "created_at": 1, "status": "completed",
            "model": "stub", "output": output, "usage": {"input_tokens": 42, "output_tokens": 11, "total_tokens": 53}});
        for (name, value) in fields.as_object().into_iter().flatten() {
            response[name] = value.clone();
        }
        if shared.server.is_some() {
            server.keep(&mut log.memory, &seen.key, &seen.body, &seen.context, &response);
        }
        response
    };
    if seen.body["stream"] != true {
        return whole(StatusCode::OK, "application/json", response.to_string(), flight);
    }
    let mut events: Vec<String> = server
        .events(&response)
        .iter()
        .map(|(kind, fields)| event(kind, fields))
        .collect();
    if matches!(server, Server::OpenClaw | Server::Generic) {
        events.push("data: [DONE]\n\n".to_owned());
    }
    stream(events, flight, false)
}

/// A response that the server has stored.
async fn recorded(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    let log = shared.log.lock().expect("no holder panics");
    match log.memory.responses.get(&id) {
        Some(response) => json_of(StatusCode::OK, response),
        None => json_of(
            StatusCode::NOT_FOUND,
            &json!({"error": {"message": "not found", "type": "invalid_request_error"}}),
        ),
    }
}

/// A session's texts, as OpenClaw's gateway returns them.
async fn history(State(shared): State<Arc<Shared>>, Path(key): Path<String>) -> Response {
    let log = shared.log.lock().expect("no holder panics");
    let seen = log
        .seen
        .iter()
        .filter(|seen| shared.server == Some(Server::OpenClaw) && seen.key == key && seen.order >= log.forgotten);
    let rows: Vec<Value> = seen
        .map(|seen| json!({"role": "user", "content": seen.input(), "__openclaw": {"id": format!("u{}", seen.order)}}))
        .collect();
    if rows.is_empty() {
        let error = json!({"type": "not_found", "message": format!("Session not found: {key}")});
        return json_of(StatusCode::NOT_FOUND, &json!({"ok": false, "error": error}));
    }
    json_of(
        StatusCode::OK,
        &json!({"sessionKey": key, "items": rows, "messages": rows, "hasMore": false}),
    )
}

fn json_of(status: StatusCode, body: &Value) -> Response {
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))
        .expect("a valid response")
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

/// A model that knows only its input: it calls the first offered function once, and then repeats every code (eight
/// hexadecimal digits) in its instructions or its context.
pub fn repeating_codes(seen: &Seen) -> Reply {
    let offered = seen.body["tools"][0]["name"].as_str();
    match offered {
        Some(name) if outputs(&seen.context).is_empty() => Reply::call("call_0", name, json!({"colour": "blue"})),
        Some(_) | None => {
            let shown = format!("{} {}", seen.body["instructions"], Value::from(seen.context.clone()));
            let codes: Vec<&str> = shown
                .split(|c: char| !c.is_ascii_alphanumeric())
                .filter(|word| word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit()))
                .collect();
            Reply::Text(format!("The codes are {}", codes.join(" and ")))
        }
    }
}
