//! Inputs from outside, against every parser that services share. Each service does the same for its own parsers, in
//! its `fuzz.rs`. A target is a test of the same name.

mod envelope;
mod names;
mod notification;
mod settings;

use contracts::{Headers, header};
use serde::{Serialize, de::DeserializeOwned};
use testkit::fuzz::Fuzz;

const UUID: &str = "0190b5a8-0000-7000-8000-000000000001";

fn fuzz(target: &'static str) -> Fuzz {
    Fuzz::new(target, env!("CARGO_MANIFEST_DIR"))
}

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// Headers as lines, an empty line, the payload: so that one input can be both.
fn message(input: &[u8]) -> (Headers, &[u8]) {
    let mut headers = Headers::default();
    let mut rest = input;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        let Some((name, value)) = line.split_once(": ") else {
            break;
        };
        headers.0.insert(name.to_owned().into(), value.to_owned());
        rest = &rest[end + 1..];
    }
    (headers, rest.strip_prefix(b"\n").unwrap_or(rest))
}

const HEADER_WORDS: &[&str] = &[
    header::MESSAGE_ID,
    header::CE_ID,
    header::REDRIVE,
    header::HOPS,
    header::TRACEPARENT,
    header::TRACESTATE,
    header::RECEIPT,
    header::CAUSE,
];

/// Parses, writes and parses again.
fn round_trip<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(input: &[u8]) -> bool {
    let Ok(read) = serde_json::from_slice::<T>(input) else {
        return false;
    };
    let written = serde_json::to_vec(&read).unwrap();
    let again: T = serde_json::from_slice(&written).expect("what was written is readable");
    assert_eq!(again, read);
    true
}
