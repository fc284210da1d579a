//! Reads one message at a time, from its stream's leader, as JSON. Slower than a batch, and independent of a message's
//! content: headers that the client library cannot parse break the connection when they arrive as they are, so a batch
//! with such a message never arrives.

use async_nats::jetstream::{ErrorCode, message::StreamMessage, response::Response, stream::RawMessage};
use serde::Deserialize;
use serde_json::json;

use crate::{Bus, Stream, error::Cause};

#[derive(Deserialize)]
struct Got {
    message: RawMessage,
}

pub(crate) struct OneMessage {
    pub(crate) message: StreamMessage,
    /// Its headers cannot be parsed: it has none here.
    pub(crate) is_odd: bool,
}

/// The first message of these subjects from a sequence on.
pub(crate) async fn message_from(
    bus: &Bus,
    stream: Stream,
    subjects: &str,
    sequence: u64,
) -> Result<Option<OneMessage>, Cause> {
    get(bus, stream, &json!({"seq": sequence, "next_by_subj": subjects})).await
}

pub(crate) async fn message_at(bus: &Bus, stream: Stream, sequence: u64) -> Result<Option<OneMessage>, Cause> {
    get(bus, stream, &json!({"seq": sequence})).await
}

async fn get(bus: &Bus, stream: Stream, question: &serde_json::Value) -> Result<Option<OneMessage>, Cause> {
    let subject = format!("STREAM.MSG.GET.{}", stream.name(bus.root()));
    let got: Got = match bus.jetstream().request(subject, question).await? {
        Response::Ok(got) => got,
        Response::Err { error } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => return Ok(None),
        Response::Err { error } => return Err(error.into()),
    };
    let bare = RawMessage {
        headers: None,
        ..got.message.clone()
    };
    Ok(Some(match StreamMessage::try_from(got.message) {
        Ok(message) => OneMessage { message, is_odd: false },
        Err(_) => OneMessage {
            message: bare.try_into()?,
            is_odd: true,
        },
    }))
}
