//! The drivers with a provider that does not answer, answers wrongly, or does not stop.
//!
//! Both kinds behave alike, so most cases use the plain one.

use std::time::Duration;

use delivery::providers::{FailureClass, Sent};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::stub::{Act, Script, Stub, chunk, stream, stream_end, stream_head, whole};
use super::{called, driver, message, new_driver};

/// Limits that a small answer reaches. No time limits: a slow machine must not change the result.
fn small() -> Value {
    json!({"answer_bytes_max": 20_000, "arguments_bytes_max": 1_000, "tool_calls_max": 3})
}

/// Short timeouts, for faults that only time reveals.
fn impatient() -> Value {
    json!({"first_byte_timeout_ms": 100, "idle_timeout_ms": 100, "call_timeout_ms_max": 400})
}

fn created() -> Act {
    chunk(b"data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_7\"}}\n\n")
}

fn delta(text: &str) -> Value {
    json!({"type": "response.output_text.delta", "output_index": 0, "delta": text})
}

fn completed(text: &str) -> Value {
    let output = json!([{"type": "message", "content": [{"type": "output_text", "text": text}]}]);
    json!({"type": "response.completed", "response": {"id": "resp_7", "status": "completed", "output": output}})
}

async fn check(what: &str, script: Script, class: FailureClass, sent: Sent) {
    check_within(what, script, class, sent, small()).await;
}

async fn check_silent(what: &str, script: Script) {
    check_within(what, script, FailureClass::Timeout, Sent::Maybe, impatient()).await;
}

async fn check_within(what: &str, script: Script, class: FailureClass, sent: Sent, limits: Value) {
    for kind in ["openresponses", "openclaw"] {
        let stub = Stub::start([script.clone()]).await;
        let (answer, _) = called(&driver(kind, &stub, limits.clone()), &message("hello")).await;
        let error = answer.expect_err(what);
        assert_eq!((error.class, error.sent), (class, sent), "{what}, {kind}: {error}");
        assert_eq!(stub.counts().requests, 1, "{what}, {kind}: sent once, whatever happens");
    }
}

#[tokio::test]
async fn distinguishes_calls_that_were_never_sent() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = taken.local_addr().unwrap();
    drop(taken);
    let stub = Stub::start([]).await; // does not speak TLS
    for url in [
        format!("http://{closed}/v1/responses"),
        "http://no-such-host.invalid/v1/responses".to_owned(),
        format!("https://{}/v1/responses", stub.address()),
    ] {
        let driver =
            new_driver(json!({"kind": "openresponses", "url": url, "model": "m", "connect_timeout_ms": 1_000}));
        let error = called(&driver, &message("hello")).await.0.unwrap_err();
        assert_eq!(
            (error.class, error.sent),
            (FailureClass::Refused, Sent::No),
            "{url}: {error}"
        );
    }
}

#[tokio::test]
async fn classifies_statuses() {
    let refused = |status: &str, headers: &str| vec![whole(status, "text/plain", headers, "no")];
    check(
        "429",
        refused("429 Too Many Requests", ""),
        FailureClass::RateLimited,
        Sent::No,
    )
    .await;
    check("500", refused("500 Oops", ""), FailureClass::ServerError, Sent::Maybe).await;
    check(
        "502",
        refused("502 Bad Gateway", ""),
        FailureClass::ServerError,
        Sent::Maybe,
    )
    .await;
    check(
        "503",
        refused("503 Unavailable", ""),
        FailureClass::ServerError,
        Sent::Maybe,
    )
    .await;
    check(
        "504",
        refused("504 Gateway Timeout", ""),
        FailureClass::Timeout,
        Sent::Maybe,
    )
    .await;
    check(
        "401",
        refused("401 Unauthorized", ""),
        FailureClass::Unauthorized,
        Sent::No,
    )
    .await;
    let elsewhere = "Location: http://127.0.0.1:1/v1/responses\r\n";
    check(
        "307",
        refused("307 Temporary Redirect", elsewhere),
        FailureClass::BadRequest,
        Sent::No,
    )
    .await;
    check(
        "204",
        vec![Act::Send(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())],
        FailureClass::Truncated,
        Sent::Maybe,
    )
    .await;
    let long = format!("HTTP/1.1 500 Oops\r\nContent-Length: {}\r\n\r\n", u64::MAX / 2);
    let endless = vec![Act::Send(long.into_bytes()), Act::Flood(vec![b'x'; 4_096])];
    check("an endless error page", endless, FailureClass::ServerError, Sent::Maybe).await;
}

#[tokio::test]
async fn knows_a_gateway_that_is_shutting_down() {
    let body = json!({"error": {"message": "draining", "type": "gateway_unavailable", "code": "gateway_unavailable"}});
    let script = vec![whole(
        "503 Unavailable",
        "application/json",
        "Retry-After: 1\r\n",
        &body.to_string(),
    )];
    let stub = Stub::start([script]).await;
    let error = called(&driver("openclaw", &stub, json!({})), &message("hello"))
        .await
        .0
        .unwrap_err();
    assert_eq!((error.class, error.sent), (FailureClass::ServerError, Sent::No));
    assert_eq!(error.retry_after, Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn gives_up_on_silence() {
    check_silent("no first byte", vec![Act::Hold]).await;
    check_silent("half a head", vec![Act::Send(b"HTTP/1.1 200".to_vec()), Act::Hold]).await;
    check_silent("idle in a stream", vec![stream_head(), created(), Act::Hold]).await;
    let dripping = vec![stream_head(), Act::Drip(b"1\r\nx\r\n".to_vec())];
    // The whole call may be long: only the silence between lines can end it.
    let limits = json!({"idle_timeout_ms": 100});
    check_within(
        "bytes, but no line",
        dripping,
        FailureClass::Timeout,
        Sent::Maybe,
        limits,
    )
    .await;
    let pinging = vec![stream_head(), Act::Drip(b"8\r\n: ping\n\n\r\n".to_vec())];
    check_silent("alive, but never done", pinging).await;
    let body = vec![
        Act::Send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{".to_vec()),
        Act::Hold,
    ];
    check_silent("half a body", body).await;
}

#[tokio::test]
async fn takes_nothing_from_a_stream_that_breaks_off() {
    let cut = |events: &[Value], last: Act| {
        let mut script = stream(events);
        script.pop();
        script.push(last);
        script
    };
    let truncated = FailureClass::Truncated;
    check("closed before the head", vec![Act::Close], truncated, Sent::Maybe).await;
    check(
        "cut after a delta",
        cut(&[delta("half")], Act::Close),
        truncated,
        Sent::Maybe,
    )
    .await;
    check("ended after a delta", stream(&[delta("half")]), truncated, Sent::Maybe).await;
    let done = vec![stream_head(), chunk(b"data: [DONE]\n\n"), stream_end()];
    check("done before the response was", done, truncated, Sent::Maybe).await;
    let mid_event = format!("data: {}", &completed("all").to_string()[..80]);
    let ended = vec![stream_head(), chunk(mid_event.as_bytes()), stream_end()];
    check("ended within the last event", ended, truncated, Sent::Maybe).await;
    let closed = vec![stream_head(), chunk(mid_event.as_bytes()), Act::Close];
    check("cut within the last event", closed, truncated, Sent::Maybe).await;
    let call = json!({"type": "response.output_item.done", "output_index": 0, "item":
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"}});
    check("a whole call, but no end", stream(&[call]), truncated, Sent::Maybe).await;
}

#[tokio::test]
async fn keeps_the_response_id_of_a_broken_stream() {
    let stub = Stub::start([vec![stream_head(), created(), Act::Close]]).await;
    let error = called(&driver("openclaw", &stub, small()), &message("hello"))
        .await
        .0
        .unwrap_err();
    assert_eq!(error.response_id.as_deref(), Some("resp_7"));
}

#[tokio::test]
async fn refuses_what_is_not_the_protocol() {
    let malformed = FailureClass::Malformed;
    let answered = |content_type: &str, body: &str| vec![whole("200 OK", content_type, "", body)];
    check(
        "not JSON",
        answered("application/json", "<html>"),
        malformed,
        Sent::Maybe,
    )
    .await;
    check(
        "an empty body",
        answered("application/json", ""),
        malformed,
        Sent::Maybe,
    )
    .await;
    check(
        "no response",
        answered("application/json", "[]"),
        malformed,
        Sent::Maybe,
    )
    .await;
    check("a page", answered("text/html", "<html>"), malformed, Sent::Maybe).await;
    let deep = format!("{{\"output\":{}", "[".repeat(5_000));
    check(
        "deep nesting",
        answered("application/json", &deep),
        malformed,
        Sent::Maybe,
    )
    .await;
    let broken = vec![stream_head(), created(), chunk(b"data: {\"type\":\n\n"), stream_end()];
    check("a broken event", broken, malformed, Sent::Maybe).await;
    let zipped = vec![whole(
        "200 OK",
        "application/json",
        "Content-Encoding: gzip\r\n",
        "zzzz",
    )];
    check("compressed, unasked", zipped, malformed, Sent::Maybe).await;
    check(
        "not HTTP",
        vec![Act::Send(b"SSH-2.0-x\r\n".to_vec()), Act::Close],
        FailureClass::Truncated,
        Sent::Maybe,
    )
    .await;
}

#[tokio::test]
async fn stops_at_its_limits() {
    let too_large = FailureClass::TooLarge;
    let line = vec![stream_head(), Act::Flood(chunk_bytes(&[b'x'; 4_096]))];
    check("a line that never ends", line, too_large, Sent::Maybe).await;
    let deltas = vec![
        stream_head(),
        Act::Flood(chunk_bytes(format!("data: {}\n\n", delta("0123456789")).as_bytes())),
    ];
    check("text that never ends", deltas, too_large, Sent::Maybe).await;
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let body = vec![Act::Send(head), Act::Flood(chunk_bytes(&[b' '; 4_096]))];
    check("a body that never ends", body, too_large, Sent::Maybe).await;
    let many: Vec<Value> = (0..4)
        .map(|n| json!({"type": "function_call", "call_id": n.to_string(), "name": "f", "arguments": "{}"}))
        .collect();
    let many = json!({"output": many}).to_string();
    check(
        "too many calls",
        vec![whole("200 OK", "application/json", "", &many)],
        too_large,
        Sent::Maybe,
    )
    .await;
    let values = format!("{{\"output\":[{}0]}}", "0,".repeat(200_000));
    check(
        "too many values",
        vec![whole("200 OK", "application/json", "", &values)],
        too_large,
        Sent::Maybe,
    )
    .await;
}

fn chunk_bytes(bytes: &[u8]) -> Vec<u8> {
    let Act::Send(bytes) = chunk(bytes) else {
        unreachable!("a chunk is sent")
    };
    bytes
}

#[tokio::test]
async fn does_not_wait_for_a_stream_to_close() {
    let mut script = stream(&[delta("all"), completed("all")]);
    script.pop();
    script.push(Act::Hold);
    let stub = Stub::start([script]).await;
    let (answer, told) = called(&driver("openresponses", &stub, json!({})), &message("hello")).await;
    assert_eq!((answer.unwrap().text.as_str(), told.as_str()), ("all", "all"));
}

#[tokio::test]
async fn reuses_a_connection_after_a_stream() {
    let stub = Stub::start([stream(&[completed("one")]), stream(&[completed("two")])]).await;
    let driver = driver("openclaw", &stub, json!({}));
    for text in ["one", "two"] {
        assert_eq!(called(&driver, &message("hello")).await.0.unwrap().text, text);
    }
    assert_eq!(stub.counts().connections, 1);
}

#[tokio::test]
async fn leaves_when_it_is_dropped() {
    let stub = Stub::start([vec![stream_head(), created(), Act::Hold]]).await;
    let driver = driver("openclaw", &stub, json!({}));
    let call = message("hello");
    tokio::select! {
        _ = called(&driver, &call) => panic!("it cannot end"),
        () = stub.until(|counts| counts.requests == 1) => {}
    }
    stub.until(|counts| counts.left == 1).await; // closing the connection stops the gateway's turn
}

#[tokio::test]
async fn takes_the_same_answer_from_any_stream() {
    let events = [delta("a\u{2028}ü🚉"), delta(" b"), completed("a\u{2028}ü🚉 b")];
    let text: String = events
        .iter()
        .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"]))
        .collect();
    let text = text.replace("event: \"", "event: ").replace("\"\ndata", "\ndata");
    for (line_end, bom, piece) in [
        ("\n", "", 1),
        ("\r\n", "", 7),
        ("\r", "\u{feff}", 3),
        ("\r\n", "\u{feff}", 1),
    ] {
        let bytes = format!("{bom}{}", text.replace('\n', line_end)).into_bytes();
        let mut script = vec![stream_head()];
        script.extend(bytes.chunks(piece).map(chunk));
        script.push(stream_end());
        let stub = Stub::start([script]).await;
        let (answer, told) = called(&driver("openresponses", &stub, json!({})), &message("hello")).await;
        let expected = "a\u{2028}ü🚉 b";
        assert_eq!(
            (answer.unwrap().text.as_str(), told.as_str()),
            (expected, expected),
            "{line_end:?} {piece}"
        );
    }
}
