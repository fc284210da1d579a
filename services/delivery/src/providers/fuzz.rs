//! Fuzzes every reader of a provider's answer. The session history is fuzzed next to its reader.

use std::time::Duration;

use runtime::egress::credential::Credential;
use secrecy::ExposeSecret;
use serde_json::json;
use testkit::fuzz::{Fuzz, Random};
use time::macros::datetime;

use super::openclaw::key::GatewayAgent;
use super::response::{Ending, Reader, Unreadable};
use super::settings::{CallLimits, ProviderSettings};
use super::sse::{Event, Splitter, TooLarge};
use super::transport::{Transport, call_headers};
use super::{refusal, retry_after};

/// Small, so that small inputs reach the limits.
const LIMITS: CallLimits = CallLimits {
    connect_timeout: Duration::from_secs(1),
    first_byte_timeout: Duration::from_secs(1),
    idle_timeout: Duration::from_secs(1),
    call_timeout_max: Duration::from_secs(1),
    request_bytes_max: 1024,
    answer_bytes_max: 4_000,
    arguments_bytes_max: 500,
    tool_calls_max: 3,
};

const WORDS: &[&str] = &[
    "data: ",
    "event: ",
    "data: [DONE]",
    "\r",
    "\n\n",
    ": ping",
    "\u{feff}",
    "error",
    "type",
    "delta",
    "item",
    "item_id",
    "output_index",
    "content_index",
    "part",
    "text",
    "refusal",
    "arguments",
    "call_id",
    "name",
    "id",
    "status",
    "phase",
    "response",
    "output",
    "content",
    "usage",
    "incomplete_details",
    "reason",
    "function_call",
    "reasoning",
    "encrypted_content",
    "message",
    "completed",
    "incomplete",
    "failed",
    "cancelled",
    "in_progress",
    "commentary",
    "final_answer",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.output_item.added",
    "response.output_item.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.content_part.done",
    "response.refusal.delta",
];

fn fuzz(target: &'static str) -> Fuzz {
    Fuzz::new(target, env!("CARGO_MANIFEST_DIR")).words(WORDS)
}

/// The bodies of a real gateway's recorded answers that contain `sign`.
pub(in crate::providers) fn recorded(sign: &str) -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openclaw");
    let mut bodies: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .filter_map(|text| {
            let (_, response) = text.split_once("\n=== RESPONSE")?;
            let (_, body) = response.split("\n\n=== ").next()?.split_once("\n\n")?;
            Some(format!("{}\n\n", body.trim_end()))
        })
        .filter(|body| body.contains(sign))
        .collect();
    bodies.sort();
    assert!(!bodies.is_empty(), "no recording has {sign}");
    bodies
}

fn events(bytes: &[u8], pieces: impl IntoIterator<Item = usize>) -> Result<Vec<Event>, TooLarge> {
    let mut splitter = Splitter::new(LIMITS.event_bytes_max());
    let (mut events, mut rest) = (Vec::new(), bytes);
    let mut pieces = pieces.into_iter();
    while !rest.is_empty() {
        let length = pieces.next().unwrap_or(rest.len()).clamp(1, rest.len());
        let (piece, after) = rest.split_at(length);
        splitter.push(piece, &mut events)?;
        rest = after;
    }
    events.extend(splitter.finish());
    Ok(events)
}

fn judged(ending: &Ending) -> &'static str {
    match ending {
        Ending::Answer(answer) => {
            assert!(answer.calls.len() <= LIMITS.tool_calls_max);
            assert!(
                answer
                    .calls
                    .iter()
                    .all(|call| call.arguments.len() <= LIMITS.arguments_bytes_max)
            );
            // Items are joined by an empty line, which the provider did not send.
            assert!(
                answer.text.len() <= 2 * LIMITS.answer_bytes_max,
                "{}",
                answer.text.len()
            );
            let reasoning: usize = answer.reasoning.iter().map(|reasoning| reasoning.item.len()).sum();
            assert!(reasoning <= LIMITS.answer_bytes_max, "{reasoning}");
            if answer.incomplete_reason.is_some() {
                "cut short"
            } else if answer.calls.is_empty() {
                "answer"
            } else {
                "calls"
            }
        }
        Ending::Failed { code, message, .. } => {
            for said in [code, message].into_iter().flatten() {
                assert!(said.chars().count() <= super::response::SHORT_CHARS_MAX && !said.contains('\0'));
            }
            "failed"
        }
    }
}

fn unreadable(error: Unreadable) -> &'static str {
    match error {
        Unreadable::Malformed(_) => "malformed",
        Unreadable::TooLarge(_) => "too large",
        Unreadable::EndedEarly => "ended early",
    }
}

#[test]
fn event_stream() {
    fuzz("event_stream")
        .seeds(recorded("data: {"))
        .seeds([format!(
            "data: {{\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"{}\"}}\n\n",
            "x".repeat(LIMITS.answer_bytes_max + 1)
        )])
        .flood(2 * LIMITS.event_bytes_max())
        .must_meet(&[
            "answer",
            "calls",
            "failed",
            "malformed",
            "too large",
            "truncated",
            "event too large",
        ])
        .run(|input| {
            let whole = events(input, []);
            let mut random = Random::new(input.len() as u64);
            let cut = events(input, std::iter::repeat_with(|| 1 + random.below(200)));
            assert_eq!(whole, cut, "it matters how the bytes were cut");
            let Ok(events) = whole else { return "event too large" };
            let mut reader = Reader::new(LIMITS, Credential::default(), |_: &str| {});
            for event in &events {
                match reader.event(event) {
                    Ok(None) => {}
                    Ok(Some(ending)) => return judged(&ending),
                    Err(error) => return unreadable(error),
                }
            }
            "truncated"
        });
}

#[test]
fn whole_answer() {
    let seeds = [
        json!({"id": "resp_1", "object": "response", "status": "completed", "usage": {"input_tokens": 1, "total_tokens": 2},
               "output": [{"type": "message", "id": "m", "phase": "final_answer",
                           "content": [{"type": "output_text", "text": "done"}, {"type": "refusal", "refusal": "no"}]},
                          {"type": "function_call", "call_id": "c", "name": "task_history", "arguments": "{}"}]}),
        json!({"id": "resp_2", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
               "output": [{"type": "message", "content": "cut"}]}),
        json!({"object": "response", "status": "failed", "error": {"code": "server_error", "message": "m"}, "output": []}),
        json!({"status": "completed", "output": [{"type": "message", "content": "plain"}]}),
        json!({"status": "completed", "output": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
                                                 {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}),
    ];
    fuzz("whole_answer")
        .seeds(seeds.map(|seed| seed.to_string()))
        .flood(LIMITS.event_bytes_max())
        .must_meet(&["answer", "calls", "failed", "cut short", "malformed", "too large"])
        .run(
            |input| match Reader::new(LIMITS, Credential::default(), |_: &str| {}).whole(input) {
                Ok(ending) => judged(&ending),
                Err(error) => unreadable(error),
            },
        );
}

/// The first byte of the input selects the status.
#[test]
fn refused_call() {
    testkit::install_tls_provider();
    let settings = json!({"kind": "openresponses", "url": "http://127.0.0.1:1/v1/responses", "model": "m"});
    let settings: ProviderSettings = serde_json::from_value(settings).unwrap();
    let transport = Transport::new(&settings, refusal::classify).unwrap();
    let seeds = [
        r#"A{"error":{"type":"invalid_request_error","code":"rate_limit_exceeded","message":"slow down"}}"#,
        r#"z{"id":"resp_1","object":"response","status":"failed","error":{"code":"server_error","message":"m"}}"#,
        r#"!{"error":"text"}"#,
        "9<html>Bad gateway</html>",
    ];
    fuzz("refused_call")
        .seeds(seeds)
        .words(&[
            "insufficient_quota",
            "authentication_error",
            "overloaded_error",
            "unauthorized",
        ])
        .flood(64 * 1024)
        .must_meet(&["rate_limited", "server_error", "bad_request"])
        .run(|input| {
            let (first, body) = input.split_first().unwrap_or((&0, &[]));
            let status = reqwest::StatusCode::from_u16(300 + u16::from(*first)).unwrap();
            let error = transport.refusal(status, body, false);
            assert!(error.detail.chars().count() <= 401 && !error.detail.contains(char::is_control));
            error.class.as_str()
        });
}

#[test]
fn retry_after() {
    let now = datetime!(2026-11-20 09:53:23 UTC).into();
    fuzz("retry_after")
        .seeds([
            "5",
            "Fri, 20 Nov 2026 09:53:53 GMT",
            "Friday, 20-Nov-26 09:53:53 GMT",
            "Fri Nov 20 09:53:53 2026",
        ])
        .words(&["Sun", "Sunday", "Feb", "29", "9999", "0000", "-", "60", "24"])
        .must_meet(&["wait", "none"])
        .run(|input| {
            match std::str::from_utf8(input)
                .ok()
                .and_then(|text| retry_after::parse(text, now))
            {
                Some(wait) => {
                    assert!(wait <= domain::breaker::RESET_MAX);
                    "wait"
                }
                None => "none",
            }
        });
}

#[test]
fn provider_settings() {
    let seeds = [
        json!({"kind": "openclaw", "url": "http://127.0.0.1:18789/v1/responses", "model": "openclaw/alpha",
               "api_key": "hunter2", "history": true, "pool_idle_timeout_ms": 4000}),
        json!({"kind": "openresponses", "url": "https://h.example/v1/responses", "model": "m", "thread": "none",
               "server": "generic", "effects": "own", "stream": false, "in_flight_max": 4}),
    ];
    fuzz("provider_settings")
        .seeds(seeds.map(|seed| seed.to_string()))
        .words(&[
            "http://",
            "file:///",
            "user:pass@",
            "[::1]",
            "gateway_agent",
            "openclaw/default",
            "server",
            "vllm",
            "openai",
            "thread_by",
            "response",
            "process",
            "durable",
        ])
        .must_meet(&["read", "refused"])
        .run(|input| match serde_json::from_slice::<ProviderSettings>(input) {
            Ok(settings) => {
                assert!(matches!(settings.url.scheme(), "http" | "https") && settings.url.has_host());
                assert!(settings.url.username().is_empty() && settings.url.password().is_none());
                let shown = format!("{settings:?}");
                let key = settings.api_key.as_ref().map(ExposeSecret::expose_secret);
                let text = String::from_utf8_lossy(input);
                let only_there = key == Some("hunter2") && text.matches("hunter2").count() == 1;
                assert!(!(only_there && shown.contains("hunter2")), "a secret is shown");
                "read"
            }
            Err(_) => "refused",
        });
}

#[test]
fn provider_key() {
    let agent = GatewayAgent::from_settings("openclaw/alpha", None).unwrap();
    fuzz("provider_key")
        .seeds([
            "task:proj-7:agent:0190b5a8-0000-7000-8000-000000000001:acme:v2",
            "orchestrator:acme:ann:v3",
        ])
        .words(&[":", "agent:", "\r\n", "%3A", "É"])
        .must_meet(&["read", "refused"])
        .run(|input| {
            let Some(key) = std::str::from_utf8(input).ok().and_then(|text| agent.key_of(text).ok()) else {
                return "refused";
            };
            assert!(key.as_str().ends_with(std::str::from_utf8(input).unwrap()));
            assert!(!key.in_path().contains(['/', '?', '#', ':']));
            call_headers(Some(key.as_str()), "id", Some("00-\u{1}")).expect("a key is a valid header value");
            "read"
        });
}
