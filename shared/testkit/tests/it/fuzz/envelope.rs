//! Messages between services: headers, signature, payloads.

use contracts::{
    Headers,
    dead::DeadLetter,
    event::EventMessage,
    header,
    live::LiveText,
    session::{SessionClosed, SessionResolved},
    tool::{ToolFinished, ToolRequested},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{HEADER_WORDS, UUID, fuzz, message, round_trip};

fn envelope<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(target: &'static str, seeds: &[String]) {
    fuzz(target)
        .seeds(seeds)
        .words(&[
            "account",
            "task",
            "session_id",
            "session_key",
            "generation",
            "fence",
            "turn_id",
            "agent_id",
            "position",
        ])
        .words(&[
            "call_id",
            "ordinal",
            "name",
            "arguments",
            "state",
            "result",
            "type",
            "data",
            "at",
            "reason",
            UUID,
        ])
        .flood(1024 * 1024)
        .must_meet(&["read", "refused"])
        .run(|input| if round_trip::<T>(input) { "read" } else { "refused" });
}

fn session_fields() -> String {
    format!(
        r#""account":"acme","task":"PROJ-7","session_id":"{UUID}","session_key":"k","generation":2,"agent_id":"{UUID}""#
    )
}

#[test]
fn session_resolved() {
    let seed = format!(r#"{{{},"position":7}}"#, session_fields());
    envelope::<SessionResolved>("session_resolved", &[seed]);
}

#[test]
fn session_closed() {
    let seed = format!(r#"{{{},"reason":"task_done"}}"#, session_fields());
    let other = format!(r#"{{{},"reason":"agent_removed"}}"#, session_fields());
    envelope::<SessionClosed>("session_closed", &[seed, other]);
}

#[test]
fn tool_requested() {
    let seed = format!(
        r#"{{{},"fence":3,"turn_id":"{UUID}","call_id":"c","ordinal":1,"name":"task_status","arguments":"{{}}"}}"#,
        session_fields()
    );
    envelope::<ToolRequested>("tool_requested", &[seed]);
}

#[test]
fn tool_finished() {
    let seed = format!(
        r#"{{{},"fence":3,"turn_id":"{UUID}","call_id":"c","ordinal":1,"name":"n","state":"finished","result":"r"}}"#,
        session_fields()
    );
    envelope::<ToolFinished>("tool_finished", &[seed]);
}

#[test]
fn event() {
    let by = r#"{"kind":"user","id":"u","name":"U"}"#;
    let seeds = [
        format!(r#""type":"task.created","data":{{"title":"t","status":"assigned","by":{by}}}"#),
        format!(r#""type":"message.posted","data":{{"message_id":"{UUID}","author":{by},"turn_id":null}}"#),
        r#""type":"notification.refused","data":{"id":null,"agent":"a","reason":"r","detail":"d","dead_letter_id":null}"#.to_owned(),
        format!(r#""type":"message.died","data":{{"dead_letter_id":"{UUID}","subject":"s","reason":"r","detail":"d"}}"#),
    ]
    .map(|rest| format!(r#"{{"account":"acme","task":null,"at":"2026-11-20T09:53:23Z",{rest}}}"#));
    envelope::<EventMessage>("event", &seeds);
}

#[test]
fn dead_letter() {
    let seed = format!(
        r#"{{"id":"{UUID}","account":"acme","subject":"signalbox.notification.acme.-","reason":"malformed","detail":"d",
            "payload":"p","attempts":1,"created_at":"2026-11-20T09:53:23.000001Z"}}"#
    );
    envelope::<DeadLetter>("dead_letter", &[seed]);
}

#[test]
fn live_text() {
    let seed = format!(
        r#"{{"session_id":"{UUID}","generation":1,"fence":1,"turn_id":"{UUID}","attempt":1,"sequence":0,"text":"t"}}"#
    );
    envelope::<LiveText>("live_text", &[seed]);
}

#[test]
fn headers() {
    fuzz("headers")
        .seeds(["Signalbox-Hops: 3\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n\n"])
        .words(HEADER_WORDS)
        .must_meet(&["hops", "none"])
        .run(|input| {
            let (headers, _) = message(input);
            let trace = headers.trace();
            for value in [&trace.traceparent, &trace.tracestate].into_iter().flatten() {
                assert!(value.len() <= header::HEADER_BYTES_MAX);
            }
            let written = serde_json::to_vec(&headers).unwrap();
            assert_eq!(serde_json::from_slice::<Headers>(&written).unwrap(), headers);
            if headers.hops() > 0 { "hops" } else { "none" }
        });
}

/// Without a key no envelope is valid: of all tried ones only the genuine one verifies.
#[test]
fn signature() {
    const SUBJECT: &str = "signalbox.session.resolved.acme.t-1";
    let keys = testkit::keyring();
    let mut genuine = Headers::default();
    genuine.set(header::MESSAGE_ID, "m-1");
    genuine.set(header::HOPS, "3");
    let payload = b"payload";
    let signature = keys.sign(SUBJECT, &genuine, payload).unwrap();
    genuine.set(header::SIGNATURE, &signature);
    let written = |signature: &str| {
        let name = header::SIGNATURE;
        format!(
            "{}: m-1\n{}: 3\n{name}: {signature}\n\npayload",
            header::MESSAGE_ID,
            header::HOPS
        )
    };
    let (version, rest) = signature.split_once('.').unwrap();
    fuzz("signature")
        .seeds([
            written(&signature),
            written(rest),
            written(&signature.to_uppercase()),
            written(&format!("{version}.other.{}", "0".repeat(64))),
        ])
        .words(HEADER_WORDS)
        .words(&[
            "v1.",
            "v1.test.",
            ".test.",
            "v2",
            "test",
            "Nats-Stream: x\n",
            "nats-x: y\n",
            " ",
        ])
        .must_meet(&["genuine", "forged"])
        .run(|input| {
            let (headers, bytes) = message(input);
            if keys.verify(SUBJECT, &headers, bytes).is_err() {
                return "forged";
            }
            // The broker's own headers are not signed, and no handler reads them; blanks around a value are
            // insignificant.
            let seen = |headers: &Headers| -> Vec<(String, String)> {
                let own = headers
                    .0
                    .iter()
                    .filter(|(name, _)| *name == header::MESSAGE_ID || !name.to_ascii_lowercase().starts_with("nats-"));
                own.map(|(name, value)| (name.to_string(), value.trim().to_owned()))
                    .filter(|(_, value)| !value.is_empty())
                    .collect()
            };
            let of_signature = |headers: &Headers| headers.get(header::SIGNATURE).map(str::to_ascii_lowercase);
            let mut others = headers.clone();
            others.0.remove(header::SIGNATURE);
            let mut expected = genuine.clone();
            expected.0.remove(header::SIGNATURE);
            assert_eq!(
                (seen(&others), bytes),
                (seen(&expected), &payload[..]),
                "a forgery counts"
            );
            assert_eq!(of_signature(&headers), of_signature(&genuine));
            assert!(
                keys.verify("signalbox.session.resolved.other.t-1", &headers, bytes)
                    .is_err()
            );
            "genuine"
        });
}
