//! The OpenClaw driver with recorded answers: text and calls of good answers, class and certainty of failed ones. Every
//! recording is in one of the tables here, or in those of `history.rs`, `requests.rs` and `threads.rs`.

use std::time::Duration;

use delivery::providers::{FailureClass, FunctionCall, Sent};
use serde_json::json;

use super::recording::{self, Recording};
use super::stub::Stub;
use super::{called, driver, message};

/// Ends of answers that the tables do not repeat in full.
const RETRY_PROMPT: &str = "ECHO: The previous attempt did not produce a user-visible answer. Continue from the \
    current state and produce the visible answer now. Do not restart from scratch.";

struct Good {
    name: &'static str,
    text: &'static str,
    /// Name and arguments.
    calls: &'static [(&'static str, &'static str)],
    incomplete: Option<&'static str>,
    /// Input and output tokens.
    usage: Option<(u64, u64)>,
}

const fn good(name: &'static str, text: &'static str, usage: (u64, u64)) -> Good {
    Good {
        name,
        text,
        calls: &[],
        incomplete: None,
        usage: Some(usage),
    }
}

const OSLO: (&str, &str) = ("get_weather", r#"{"city":"Oslo"}"#);

const GOOD: &[Good] = &[
    good("a01-text", "Hi there", (2105, 2)),
    good("a02-text-stream", "Hi there", (2105, 2)),
    good("a05-stream-drip", "w0 w1 w2 w3 w4 w5 w6 w7 w8 w9", (2103, 7)),
    good("a11-own-output-echoed", "x", (2130, 1)),
    good("a20-empty-answer", RETRY_PROMPT, (4248, 41)),
    Good {
        incomplete: Some("max_output_tokens"),
        ..good("a21-length", "cut off here", (2105, 3))
    },
    Good {
        incomplete: Some("max_output_tokens"),
        ..good("a22-length-stream", "cut off here", (2105, 3))
    },
    Good {
        usage: None,
        ..good("a27-nousage", "NOUSAGE", (0, 0))
    },
    good("a28-no-reply-token", RETRY_PROMPT, (4252, 42)),
    good("a30-directive-in-answer", "hello", (2108, 6)),
    good("a31-media-in-answer", "", (2109, 7)),
    Good {
        calls: &[OSLO],
        ..good("c02-call", "", (2110, 1))
    },
    Good {
        calls: &[OSLO],
        ..good("c05-call-key", "", (2100, 1))
    },
    good("c06-continue-key", "TOOLRESULT 180fb2d4d: 3 C", (2150, 6)),
    good("c12-output-empty", "TOOLRESULT call_x:", (2102, 4)),
    Good {
        calls: &[OSLO],
        ..good("c13-stream-call", "", (2110, 1))
    },
    Good {
        calls: &[OSLO],
        ..good("c14-stream-text-and-call", "", (2113, 3))
    },
    Good {
        calls: &[OSLO, ("get_time", "{}")],
        ..good("c16-parallel-calls", "", (2112, 1))
    },
    good("c17-parallel-continue", "TOOLRESULT 67e4d4ae5: out get_time", (2227, 8)),
    Good {
        calls: &[OSLO, ("get_time", "{}")],
        ..good("c18-parallel-stream", "", (2112, 1))
    },
    good(
        "c26-unknown-tool",
        "TOOLRESULT call3fdc6123e2c8: Tool no_such_tool_eccb not found",
        (4223, 16),
    ),
    good(
        "c28-missing-required-arg",
        "TOOLRESULT call4e5c6c090d04: Validation failed for tool \"get_weather\":\n  - city: must have required \
         properties city\n\nReceived arguments:\n{}",
        (4247, 35),
    ),
    Good {
        calls: &[OSLO],
        ..good(
            "c39-builtin-and-client",
            "TOOLRESULT call928dc488faf5: {\n  \"status\": \"pending\",\n  \"tool\": \"get_weather\",\n  \"message\": \
             \"Tool execution delegated to client\"\n}",
            (4428, 33),
        )
    },
    good("k08-idempotency-1", "x", (2154, 1)),
    good("k09-idempotency-2", "x", (2131, 1)),
    good("l01-sigterm-plain", "SLOW: 6", (2097, 1)),
    good("l01-sigterm-stream", "SLOW: 6", (2097, 1)),
];

#[tokio::test]
async fn reads_recorded_answers() {
    for good in GOOD {
        check_good(good).await;
    }
}

async fn check_good(good: &Good) {
    let recording = Recording::load(good.name);
    let stub = Stub::start([recording.script()]).await;
    let (answer, told) = called(&driver("openclaw", &stub, json!({})), &message("hello")).await;
    let answer = answer.unwrap_or_else(|error| panic!("{}: {error}", good.name));
    assert_eq!(answer.text, good.text, "{}", good.name);
    let calls: Vec<(&str, &str)> = answer
        .calls
        .iter()
        .map(|call| (&*call.name, &*call.arguments))
        .collect();
    assert_eq!(calls, good.calls, "{}", good.name);
    assert!(answer.calls.iter().all(has_recorded_id(&recording)), "{}", good.name);
    assert_eq!(answer.incomplete_reason.as_deref(), good.incomplete, "{}", good.name);
    let usage = answer.usage.map(|usage| (usage.input_tokens, usage.output_tokens));
    assert_eq!(usage, good.usage, "{}", good.name);
    assert!(
        answer.response_id.is_some_and(|id| recording.body.contains(&id)),
        "{}",
        good.name
    );
    // The notice of a cut answer is removed from the answer, not from the streamed text.
    assert!(told.starts_with(good.text), "{}: told {told:?}", good.name);
}

fn has_recorded_id(recording: &Recording) -> impl Fn(&FunctionCall) -> bool {
    |call| call.call_id.len() == 9 && recording.body.contains(&format!("\"call_id\":\"{}\"", call.call_id))
}

type Bad = (&'static str, FailureClass, Sent, Option<u64>);

/// Name, class, certainty, seconds to wait.
const BAD: &[Bad] = &[
    // The gateway itself refused: nothing ran.
    ("a14-field-metadata-num", FailureClass::BadRequest, Sent::No, None),
    (
        "a14-field-parallel_tool_calls",
        FailureClass::BadRequest,
        Sent::No,
        None,
    ),
    ("a14-field-user-null", FailureClass::BadRequest, Sent::No, None),
    ("c10-output-array", FailureClass::BadRequest, Sent::No, None),
    ("d01-no-token", FailureClass::Unauthorized, Sent::No, None),
    ("d02-bad-token", FailureClass::Unauthorized, Sent::No, None),
    ("d12-bad-json", FailureClass::BadRequest, Sent::No, None),
    ("d16-no-input", FailureClass::BadRequest, Sent::No, None),
    ("d21-unknown-model", FailureClass::BadRequest, Sent::No, None),
    ("d22-unknown-agent", FailureClass::BadRequest, Sent::No, None),
    ("d32-too-large", FailureClass::BadRequest, Sent::No, None),
    ("d35-not-found", FailureClass::BadRequest, Sent::No, None),
    ("d49-xff", FailureClass::BadRequest, Sent::No, None),
    ("i02-good-during-lockout", FailureClass::RateLimited, Sent::No, Some(5)),
    // The turn failed: a response object says so, with any status.
    ("b05-key-bare", FailureClass::Failed, Sent::Yes, None),
    ("c29-name-conflict", FailureClass::BadRequest, Sent::Yes, None),
    ("c30-name-conflict-hidden", FailureClass::BadRequest, Sent::Yes, None),
    ("c31-duplicate-tool", FailureClass::BadRequest, Sent::Yes, None),
    ("e01-429", FailureClass::RateLimited, Sent::Yes, None),
    ("e01-429-stream", FailureClass::RateLimited, Sent::Yes, None),
    ("e03-500", FailureClass::ServerError, Sent::Yes, None),
    ("e03-500-stream", FailureClass::ServerError, Sent::Yes, None),
    ("e05-400", FailureClass::BadRequest, Sent::Yes, None),
    ("e05-400-stream", FailureClass::BadRequest, Sent::Yes, None),
    ("e06-401", FailureClass::AgentUnauthorized, Sent::Yes, None),
    ("e06-401-stream", FailureClass::AgentUnauthorized, Sent::Yes, None),
    ("e08-malformed", FailureClass::Failed, Sent::Yes, None),
    ("e08-malformed-stream", FailureClass::Failed, Sent::Yes, None),
    ("e10-drop", FailureClass::ServerError, Sent::Yes, None),
    ("e10-drop-stream", FailureClass::ServerError, Sent::Yes, None),
    ("e11-cut", FailureClass::ServerError, Sent::Yes, None),
    ("e11-cut-stream", FailureClass::ServerError, Sent::Yes, None),
    ("e12-down", FailureClass::ServerError, Sent::Yes, None),
    ("e15-402", FailureClass::Quota, Sent::Yes, None),
    ("h01-run-timeout", FailureClass::Failed, Sent::Yes, None),
    ("h01-run-timeout-stream", FailureClass::Failed, Sent::Yes, None),
    // The gateway was killed: the outcome is unknown.
    ("l01-sigkill-plain", FailureClass::Truncated, Sent::Maybe, None),
    ("l01-sigkill-stream", FailureClass::Truncated, Sent::Maybe, None),
];

#[tokio::test]
async fn classifies_recorded_failures() {
    for bad in BAD {
        check_bad(bad).await;
    }
}

async fn check_bad(&(name, class, sent, seconds): &Bad) {
    let recording = Recording::load(name);
    let stub = Stub::start([recording.script()]).await;
    let (answer, _) = called(&driver("openclaw", &stub, json!({})), &message("hello")).await;
    let error = answer.expect_err(name);
    assert_eq!((error.class, error.sent), (class, sent), "{name}: {error}");
    assert_eq!(error.retry_after, seconds.map(Duration::from_secs), "{name}");
    match &error.response_id {
        Some(id) => assert!(recording.body.contains(id), "{name}"),
        None => assert!(
            !recording.body.contains("\"resp_"),
            "{name}: the response id was overlooked"
        ),
    }
    assert!(!error.to_string().contains("secret-t0ken"), "{name}: {error}");
}

#[test]
fn no_recording_is_forgotten() {
    let mut used: Vec<&str> = GOOD
        .iter()
        .map(|good| good.name)
        .chain(BAD.iter().map(|bad| bad.0))
        .collect();
    used.extend(super::history::RECORDINGS);
    used.extend(super::requests::RECORDINGS);
    used.extend(super::threads::RECORDINGS);
    used.sort_unstable();
    used.dedup();
    assert_eq!(recording::names(), used);
}
