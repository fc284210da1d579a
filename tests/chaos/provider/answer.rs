//! Answers on the wire, valid and broken in every scheduled way.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{StatusCode, header},
    response::Response,
};
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};

use super::Flight;
use crate::{plan::ProviderFailure, records::CallEnd};

/// Above delivery's limit of an answer.
const HUGE_BYTES: usize = 3 * 1024 * 1024;
/// Longer than delivery's timeout.
const FOR_EVER: Duration = Duration::from_secs(600);
/// Deeper than any parser's limit.
const DEPTH: usize = 100_000;
/// More calls than delivery's limit.
const MANY: usize = 1_000;
/// Prefix of the id of a repeated call.
pub(super) const ENDLESS: &str = "endless-";
const DRIP_BYTES: usize = 40;
const DRIP_PAUSE: Duration = Duration::from_millis(25);

/// The agent's answer.
pub(super) enum Said {
    Text(String),
    /// Id, tool, arguments.
    Calls(Vec<(String, String, Value)>),
}

impl Said {
    fn end(&self) -> CallEnd {
        match self {
            Said::Text(text) => CallEnd::Text { text: text.clone() },
            Said::Calls(calls) => CallEnd::Calls {
                calls: calls.iter().map(|(id, tool, _)| (id.clone(), tool.clone())).collect(),
            },
        }
    }

    fn output(&self) -> Vec<Value> {
        match self {
            Said::Text(text) => vec![
                json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}]}),
            ],
            Said::Calls(calls) => calls
                .iter()
                .map(|(id, tool, arguments)| {
                    json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": tool,
                    "arguments": arguments.to_string(), "status": "completed"})
                })
                .collect(),
        }
    }

    fn response(&self, id: &str) -> Value {
        json!({"id": id, "object": "response", "created_at": 1, "status": "completed", "model": "stub",
            "output": self.output(), "usage": {"input_tokens": 42, "output_tokens": 11, "total_tokens": 53}})
    }

    fn events(&self, id: &str) -> Vec<String> {
        let begun = json!({"response": {"id": id, "status": "in_progress", "output": []}});
        let mut events = vec![event("response.created", &begun)];
        if let Said::Text(text) = self {
            for piece in text.split_inclusive(' ') {
                let delta = json!({"output_index": 0, "content_index": 0, "delta": piece});
                events.push(event("response.output_text.delta", &delta));
            }
        }
        for (index, item) in self.output().iter().enumerate() {
            let done = json!({"output_index": index, "item": item});
            events.push(event("response.output_item.done", &done));
        }
        events.push(event("response.completed", &json!({"response": self.response(id)})));
        events.push("data: [DONE]\n\n".to_owned());
        events
    }
}

fn event(kind: &str, fields: &Value) -> String {
    let mut data = fields.clone();
    data["type"] = json!(kind);
    format!("event: {kind}\ndata: {data}\n\n")
}

fn id_of(flight: &Flight) -> String {
    format!("resp_{}", flight.order)
}

pub(super) fn whole(said: Said, flight: Flight) -> Response {
    let (events, end) = (said.events(&id_of(&flight)), said.end());
    let (first, last) = first_and_last(events);
    streamed(pieces(first), last, flight, end)
}

/// The last piece completes the answer.
fn first_and_last(mut events: Vec<String>) -> (Vec<String>, Bytes) {
    let last = events.split_off(events.len().saturating_sub(2));
    (events, Bytes::from(last.concat()))
}

pub(super) async fn failed(failure: ProviderFailure, said: Said, flight: Flight) -> Response {
    let end = CallEnd::Failure {
        name: name(failure).to_owned(),
    };
    let id = id_of(&flight);
    match failure {
        ProviderFailure::Status { status, retry_after } => {
            let status = StatusCode::from_u16(status).expect("the schedule has real ones");
            let body = json!({"error": {"message": "as the schedule wants", "type": "some_error"}}).to_string();
            let mut response = at_once(status, body, &flight, end);
            if let Some(wait) = retry_after {
                let value = wait.parse().expect("a header value");
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
            response
        }
        ProviderFailure::Quota => {
            let body = json!({"error": {"message": "as the schedule wants", "code": "insufficient_quota"}}).to_string();
            at_once(StatusCode::TOO_MANY_REQUESTS, body, &flight, end)
        }
        ProviderFailure::Silent => {
            tokio::time::sleep(FOR_EVER).await;
            at_once(StatusCode::OK, String::new(), &flight, end)
        }
        ProviderFailure::SilentInStream => {
            let first = said.events(&id).into_iter().take(1).collect();
            streamed(pieces(first).chain(silence()), Bytes::new(), flight, end)
        }
        ProviderFailure::NeverCloses => {
            let end = said.end();
            let (first, last) = first_and_last(said.events(&id));
            let said = pieces(first).chain(landing(last, flight, end));
            event_stream(Body::from_stream(said.chain(silence())))
        }
        ProviderFailure::CutStream => {
            let mut events = said.events(&id);
            events.truncate(events.len().saturating_sub(2));
            streamed(pieces(events), Bytes::new(), flight, end)
        }
        ProviderFailure::CutEvent => {
            let text = said.events(&id).concat();
            let half = text.floor_char_boundary(text.len() / 2);
            flight.land(end);
            let broken = stream::iter([
                Ok(Bytes::from(text[..half].to_owned())),
                Err(std::io::Error::other("cut off as the schedule wants")),
            ]);
            event_stream(Body::from_stream(broken))
        }
        ProviderFailure::MalformedJson => at_once(StatusCode::OK, "{\"id\": ".to_owned(), &flight, end),
        ProviderFailure::DeepJson => {
            let deep = format!("{{\"id\": {}1{}}}", "[".repeat(DEPTH), "]".repeat(DEPTH));
            at_once(StatusCode::OK, deep, &flight, end)
        }
        ProviderFailure::Disordered => {
            let end = said.end();
            let (first, last) = first_and_last(disordered(said.events(&id)));
            streamed(pieces(first), last, flight, end)
        }
        ProviderFailure::WrongTypes => {
            let body =
                json!({"id": 7, "object": [], "status": {"a": 1}, "output": "none", "usage": {"input_tokens": 1e300}});
            at_once(StatusCode::OK, body.to_string(), &flight, end)
        }
        ProviderFailure::FailedResponse => {
            let response = json!({"id": id, "object": "response", "status": "failed", "output": [],
                "error": {"code": "server_error", "message": "as the schedule wants"}});
            let events = vec![event("response.failed", &json!({ "response": response }))];
            streamed(pieces(events), Bytes::new(), flight, end)
        }
        ProviderFailure::Strange => {
            let end = said.end();
            let (first, last) = strange(&said.events(&id));
            streamed(first, last, flight, end)
        }
        ProviderFailure::Drip => {
            let end = said.end();
            let (events, last) = first_and_last(said.events(&id));
            let text = events.concat();
            let (slow, rest) = text.split_at(text.floor_char_boundary(DRIP_BYTES));
            let drops: Vec<Bytes> = slow.bytes().map(|byte| Bytes::from(vec![byte])).collect();
            let dripping = stream::iter(drops).then(|drop| async {
                tokio::time::sleep(DRIP_PAUSE).await;
                Ok(drop)
            });
            streamed(dripping.chain(pieces(vec![rest.to_owned()])), last, flight, end)
        }
        ProviderFailure::Huge => {
            let events = Said::Text("x".repeat(HUGE_BYTES)).events(&id);
            streamed(pieces(events), Bytes::new(), flight, end)
        }
        ProviderFailure::UnknownTool => called(&id, 1, "launch_rocket", json!({"now": true}), flight),
        ProviderFailure::BadArguments => called(&id, 1, "task_message", json!({"body": 7, "colour": "red"}), flight),
        ProviderFailure::ForeignTask => {
            let arguments = json!({"task_id": "NOT-MINE-1", "body": "foreign"});
            called(&id, 1, "task_message", arguments, flight)
        }
        ProviderFailure::ManyCalls => called(&id, MANY, "launch_rocket", json!({}), flight),
        ProviderFailure::EndlessCalls => endless(flight),
    }
}

/// As in the report.
fn name(failure: ProviderFailure) -> &'static str {
    match failure {
        ProviderFailure::Status { .. } => "status",
        ProviderFailure::Quota => "quota",
        ProviderFailure::Silent => "silent",
        ProviderFailure::SilentInStream => "silent in stream",
        ProviderFailure::CutStream => "cut stream",
        ProviderFailure::CutEvent => "cut event",
        ProviderFailure::NeverCloses => "never closes",
        ProviderFailure::Disordered => "disordered",
        ProviderFailure::MalformedJson => "malformed",
        ProviderFailure::DeepJson => "deep",
        ProviderFailure::WrongTypes => "wrong types",
        ProviderFailure::FailedResponse => "failed response",
        ProviderFailure::Strange => "strange",
        ProviderFailure::Drip => "drip",
        ProviderFailure::Huge => "huge",
        ProviderFailure::UnknownTool => "unknown tool",
        ProviderFailure::BadArguments => "bad arguments",
        ProviderFailure::ForeignTask => "foreign task",
        ProviderFailure::ManyCalls => "many calls",
        ProviderFailure::EndlessCalls => "endless calls",
    }
}

/// Calls that are refused. Their results have an id without an effect, and are answered with a text.
fn called(id: &str, count: usize, tool: &str, arguments: Value, flight: Flight) -> Response {
    let calls = (0..count).map(|nth| (format!("wrong-{nth}-{id}"), tool.to_owned(), arguments.clone()));
    whole(Said::Calls(calls.collect()), flight)
}

/// A harmless call, repeated after each result until delivery's limit.
pub(super) fn endless(flight: Flight) -> Response {
    let id = format!("{ENDLESS}{}", flight.order);
    whole(Said::Calls(vec![(id, "launch_rocket".to_owned(), json!({}))]), flight)
}

fn pieces(events: Vec<String>) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::iter(events.into_iter().map(|event| Ok(Bytes::from(event))))
}

/// Repeated and reordered events, up to the event with the whole answer.
fn disordered(mut events: Vec<String>) -> Vec<String> {
    let last = events.split_off(events.len().saturating_sub(2));
    let mut all: Vec<String> = events.iter().rev().cloned().collect();
    all.extend(events.into_iter().filter(|event| event.contains("output_item.done")));
    all.extend(last);
    all
}

fn silence() -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::once(async {
        tokio::time::sleep(FOR_EVER).await;
        Ok(Bytes::new())
    })
}

/// The same in an unusual but valid spelling: a byte order mark, CRLF, comments, unknown events and fields, and pieces that end
/// anywhere, also within a character.
fn strange(events: &[String]) -> (impl Stream<Item = Result<Bytes, Infallible>> + Send + use<>, Bytes) {
    let mut text = "\u{feff}: a comment – with a dash\r\n\r\n".to_owned();
    for event in events {
        text.push_str(
            "event: response.of_tomorrow\r\ndata: {\"type\": \"response.of_tomorrow\", \"π\": 3}\r\n\r\nretry: 5\r\n",
        );
        text.push_str(&event.replace('\n', "\r\n"));
    }
    let told = text.find("event: response.completed").unwrap_or(text.len());
    let last = Bytes::from(text.split_off(told));
    let pieces: Vec<Bytes> = text.into_bytes().chunks(61).map(Bytes::copy_from_slice).collect();
    (stream::iter(pieces.into_iter().map(Ok)), last)
}

/// Recorded as ended when its last piece is handed on, before the caller can have read it, and as aborted when the connection is
/// dropped.
fn streamed(
    pieces: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
    last: Bytes,
    flight: Flight,
    end: CallEnd,
) -> Response {
    event_stream(Body::from_stream(pieces.chain(landing(last, flight, end))))
}

fn landing(last: Bytes, flight: Flight, end: CallEnd) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::once(async move {
        flight.land(end);
        Ok(last)
    })
}

fn event_stream(body: Body) -> Response {
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .body(body)
        .expect("a valid response")
}

fn at_once(status: StatusCode, body: String, flight: &Flight, end: CallEnd) -> Response {
    flight.land(end);
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .expect("a valid response")
}
