//! A message as the stream delivered it. The broker's own types are not used beyond this file.

use async_nats::{HeaderMap, jetstream::message::StreamMessage};
use bytes::Bytes;
use contracts::{Headers, header};
use time::OffsetDateTime;

#[derive(Clone, PartialEq, Debug)]
pub struct Incoming {
    /// The stored subject: a notification's is `{root}.partition.{p}.{account}.{task}`.
    pub subject: String,
    /// One value a name. Names of `contracts::header` are spelt as there, whatever the publisher's spelling.
    pub headers: Headers,
    pub payload: Bytes,
    pub stream_sequence: u64,
    /// 1 for the first delivery.
    pub deliveries: i64,
    /// When the stream stored it, by the broker's clock.
    pub published: OffsetDateTime,
}

impl Incoming {
    pub(crate) fn new(
        message: async_nats::Message,
        stream_sequence: u64,
        deliveries: i64,
        published: OffsetDateTime,
    ) -> Incoming {
        Incoming {
            subject: message.subject.into_string(),
            headers: message.headers.as_ref().map(read_headers).unwrap_or_default(),
            payload: message.payload,
            stream_sequence,
            deliveries,
            published,
        }
    }

    /// The publisher's id for this message, if a header has one.
    pub fn id(&self) -> Option<&str> {
        self.headers
            .get(header::MESSAGE_ID)
            .or_else(|| self.headers.get(header::CE_ID))
    }
}

impl From<StreamMessage> for Incoming {
    fn from(message: StreamMessage) -> Self {
        Incoming {
            subject: message.subject.into_string(),
            headers: read_headers(&message.headers),
            payload: message.payload,
            stream_sequence: message.sequence,
            deliveries: 1,
            published: message.time,
        }
    }
}

/// The first value of each name. Some clients write `Traceparent` as HTTP does; NATS header names are case-sensitive.
pub(crate) fn read_headers(map: &HeaderMap) -> Headers {
    let mut headers = Headers::default();
    for (name, values) in map.iter() {
        let name: &str = name.as_ref();
        let known = header::NAMES.into_iter().find(|known| known.eq_ignore_ascii_case(name));
        if let Some(value) = values.first() {
            // An exact spelling takes precedence over another one.
            if known.is_none_or(|known| known == name || !headers.0.contains_key(known)) {
                headers.set(known.unwrap_or(name), value.as_str());
            }
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_read_in_any_case_and_the_exact_one_wins() {
        let mut map = HeaderMap::new();
        map.insert("Traceparent", "a");
        map.insert("nats-msg-id", "other");
        map.insert("Nats-Msg-Id", "exact");
        map.append("X-Mine", "first");
        map.append("X-Mine", "second");
        let headers = read_headers(&map);
        assert_eq!(headers.get(header::TRACEPARENT), Some("a"));
        assert_eq!(headers.get(header::MESSAGE_ID), Some("exact"));
        assert_eq!(headers.get("X-Mine"), Some("first"));
        assert_eq!(headers.0.len(), 3);
    }
}
