//! Publishing: all messages are sent before the first acknowledgement is awaited, for throughput.

use std::{error::Error, pin::pin, str::FromStr};

use async_nats::{
    HeaderMap, HeaderName, HeaderValue, SubjectError,
    jetstream::{
        self, ErrorCode,
        context::{PublishAckFuture, PublishErrorKind},
        message::PublishMessage,
    },
};
use contracts::{Outgoing, header};
use futures::{StreamExt, stream::FuturesUnordered};

use crate::{Bus, Keyring, PublishError, Unpublished};

/// The position of a stored message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// In its stream.
    pub sequence: u64,
}

impl Bus {
    /// Publishes messages in their order and waits for all acknowledgements. The results are in the same order.
    ///
    /// A retryable error ([`PublishError::is_retryable`]) means: publish the same message, with the same id, again. A
    /// message that was stored already is acknowledged as well, so `Ok` means "stored", not "stored now". After one
    /// timeout the rest is not sent, so that an unresponsive server is not waited for once per message.
    pub async fn publish_all<M: AsRef<Outgoing> + Sync>(&self, messages: &[M]) -> Vec<Result<Stored, PublishError>> {
        let mut answers = Answers::new(messages.len());
        let mut unanswered = FuturesUnordered::new();
        for (index, message) in messages.iter().map(AsRef::as_ref).enumerate() {
            // Messages are sent one after the other: concurrent sends could overtake each other. Acknowledgements are
            // received meanwhile, since they free the room for this message.
            let mut sending = pin!(self.send(message));
            let sent = loop {
                tokio::select! {
                    biased;
                    sent = &mut sending => break sent,
                    // Cancel-safe: the acknowledgement stays with its future.
                    Some((index, answer)) = unanswered.next() => answers.note(index, answer),
                }
            };
            match sent {
                Ok(acknowledgement) => unanswered.push(async move {
                    let answer = acknowledgement.await;
                    let stored = answer.map(|acknowledged| Stored {
                        sequence: acknowledged.sequence,
                    });
                    (index, stored.map_err(|error| classified(message, error)))
                }),
                Err(error) => answers.note(index, Err(error)),
            }
            if answers.is_server_silent {
                break;
            }
        }
        while let Some((index, answer)) = unanswered.next().await {
            answers.note(index, answer);
        }
        let results = answers.complete(messages);
        let failed = results.iter().filter(|result| result.is_err()).count() as u64;
        self.meters().published("stored", results.len() as u64 - failed);
        self.meters().published("failed", failed);
        results
    }

    /// Passes a message to the connection. Waits while too many are unacknowledged.
    async fn send(&self, message: &Outgoing) -> Result<PublishAckFuture, PublishError> {
        let publish = PublishMessage::build()
            .headers(wire_headers(message, Some(self.keys()))?)
            .payload(message.payload.clone().into());
        let sent = self.publisher().send_publish(message.subject.clone(), publish).await;
        sent.map_err(|error| classified(message, error))
    }
}

/// Acknowledgements as they arrive, in any order.
struct Answers {
    by_index: Vec<Option<Result<Stored, PublishError>>>,
    is_server_silent: bool,
}

impl Answers {
    fn new(count: usize) -> Answers {
        Answers {
            by_index: (0..count).map(|_| None).collect(),
            is_server_silent: false,
        }
    }

    fn note(&mut self, index: usize, answer: Result<Stored, PublishError>) {
        let is_silent = |error: &PublishError| matches!(error.reason, Unpublished::Unknown(_));
        self.is_server_silent |= answer.as_ref().is_err_and(is_silent);
        self.by_index[index] = Some(answer);
    }

    /// A message without a result was not sent; the caller treats it like an unknown result.
    fn complete<M: AsRef<Outgoing>>(self, messages: &[M]) -> Vec<Result<Stored, PublishError>> {
        let answers = self.by_index.into_iter().zip(messages.iter().map(AsRef::as_ref));
        let completed = answers.map(|(answer, message)| {
            answer.unwrap_or_else(|| {
                let unsent = "not sent: the server did not acknowledge an earlier message";
                Err(PublishError::new(message, Unpublished::Unknown(unsent.into())))
            })
        });
        completed.collect()
    }
}

/// Headers for the wire, signed if there is a key. The library's own conversions panic on a line break, so they are not
/// used.
pub(crate) fn wire_headers(message: &Outgoing, keys: Option<&Keyring>) -> Result<HeaderMap, PublishError> {
    let malformed = |reason: String| PublishError::new(message, Unpublished::Malformed(reason));
    let mut headers = HeaderMap::new();
    let mut set = |name: &str, value: &str| {
        // Our own names need no copy, and are valid.
        let wire_name = match header::NAMES.into_iter().find(|known| *known == name) {
            Some(known) => HeaderName::from_static(known),
            None => HeaderName::from_str(name).map_err(|error| malformed(format!("header {name:?}: {error}")))?,
        };
        let wire_value =
            HeaderValue::from_str(value).map_err(|error| malformed(format!("value of header {name:?}: {error}")))?;
        headers.insert(wire_name, wire_value);
        Ok(())
    };
    for (name, value) in &message.headers.0 {
        set(name, value)?;
    }
    // Replaces the signature of a stored message, which was for another subject.
    if let Some(signature) = keys.and_then(|keys| keys.sign(&message.subject, &message.headers, &message.payload)) {
        set(header::SIGNATURE, &signature)?;
    }
    Ok(headers)
}

/// Sorts the client library's errors by what the caller can do.
fn classified(message: &Outgoing, error: jetstream::context::PublishError) -> PublishError {
    let too_large = Unpublished::TooLarge {
        bytes: message.payload.len(),
    };
    let reason = match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => too_large,
        PublishErrorKind::StreamNotFound => Unpublished::NoStream,
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
            Unpublished::Unknown(error.into())
        }
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => {
            Unpublished::NotStored(error.into())
        }
        PublishErrorKind::Other => {
            let cause = error.source();
            if let Some(answer) = cause.and_then(|cause| cause.downcast_ref::<jetstream::Error>()) {
                match answer.error_code() {
                    ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => too_large,
                    _ => Unpublished::NotStored(error.into()),
                }
            } else if let Some(reason) = cause.and_then(|cause| cause.downcast_ref::<SubjectError>()) {
                Unpublished::Malformed(reason.to_string())
            } else {
                // A malformed reply, or a closing client.
                Unpublished::Unknown(error.into())
            }
        }
    };
    PublishError::new(message, reason)
}
