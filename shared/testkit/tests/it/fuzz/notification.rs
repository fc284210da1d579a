//! Notifications, which any publisher may send.

use contracts::{
    Headers,
    notification::{self, NotificationMessage},
};
use serde_json::Value;

use super::{HEADER_WORDS, UUID, fuzz, message};

#[test]
fn notification() {
    let full = format!(
        r#"{{"id":"ci-1","type":"ci_failed","agent":"coder","title":"t","body":"b","message_id":"{UUID}",
            "sender":{{"kind":"user","id":"u-1","name":"A person"}},"queue_mode":"interrupt",
            "metadata":{{"run":1,"deep":[{{"a":[1.5,null,true]}}]}},"branch":"main"}}"#
    );
    let seeds = [
        full.clone(),
        format!("Nats-Msg-Id: m-1\nce-id: c-1\nSignalbox-Redrive: {UUID}\nSignalbox-Hops: 3\n\n{full}"),
        r#"{"agents":["coder","0190b5a8-0000-7000-8000-000000000001"],"body":"b","queue_mode":"followup"}"#.to_owned(),
        r#"{"body":"b"}"#.to_owned(),
    ];
    fuzz("notification")
        .seeds(seeds)
        .words(HEADER_WORDS)
        .words(&[
            "id",
            "type",
            "agent",
            "agents",
            "title",
            "body",
            "message_id",
            "sender",
            "kind",
            "queue_mode",
            "metadata",
        ])
        .words(&[
            "steer",
            "collect",
            "interrupt",
            "followup",
            "service",
            "agent",
            "reopen",
        ])
        .flood(notification::MESSAGE_BYTES_MAX)
        .must_meet(&["read", "malformed", "invalid_field", "too_large"])
        .run(|input| {
            let (headers, payload) = message(input);
            match notification::read(&headers, payload) {
                Ok(read) => {
                    assert!(read.body.len() <= notification::BODY_BYTES_MAX);
                    let metadata = serde_json::to_vec(&read.metadata).unwrap();
                    assert!(metadata.len() <= notification::METADATA_BYTES_MAX);
                    assert!(!read.body.contains('\0') && !holds_nul(&read.metadata.clone().into()));
                    // The resolver parses the messages that the API writes for the relay.
                    let written: NotificationMessage =
                        serde_json::from_slice(payload).unwrap_or_else(|_| NotificationMessage {
                            id: read.id.clone(),
                            kind: Some(read.kind.clone()),
                            agent: None,
                            agents: Vec::new(),
                            session: None,
                            title: read.title.clone(),
                            body: read.body.clone(),
                            message_id: read.message_id,
                            sender: Some(read.sender.clone()),
                            queue_mode: read.queue_mode,
                            metadata: read.metadata.clone(),
                        });
                    let again = notification::read(&Headers::default(), &serde_json::to_vec(&written).unwrap());
                    let again = again.expect("what was read and written is readable");
                    assert_eq!((again.body, again.title), (read.body, read.title));
                    "read"
                }
                Err(unreadable) => unreadable.refusal.reason.as_str(),
            }
        });
}

/// Postgres cannot store a NUL in a text.
fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
