//! Publishing: everything is sent before the first acknowledgement is awaited, which is where the speed is.

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

use crate::{Bus, Keyring, PublishError};

/// Where the broker has put a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored {
    /// In its stream.
    pub sequence: u64,
}

impl Bus {
    /// Publishes messages in their order and waits for all acknowledgements. The answers stand in the same order.
    ///
    /// A retriable error ([`PublishError::is_retryable`]) means: send the same message, with the same id, again. One
    /// that was stored already is acknowledged as well, so `Ok` says "stored", not "stored now".
    /// A server that does not answer is not waited for once per message: what was not sent by then is not sent.
    pub async fn publish_all<M: AsRef<Outgoing> + Sync>(&self, messages: &[M]) -> Vec<Result<Stored, PublishError>> {
        let mut answers = Answers::new(messages.len());
        let mut unanswered = FuturesUnordered::new();
        for (index, message) in messages.iter().map(AsRef::as_ref).enumerate() {
            // One is sent after the other: sends that are polled side by side overtake each other. Meanwhile answers
            // are taken in, since the room for this message comes from them.
            let mut sending = pin!(self.send(message));
            let sent = loop {
                tokio::select! {
                    biased;
                    sent = &mut sending => break sent,
                    // Dropping `next` leaves the answer with its future.
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

    /// Hands a message to the connection. Waits while too many are unanswered.
    async fn send(&self, message: &Outgoing) -> Result<PublishAckFuture, PublishError> {
        let publish = PublishMessage::build()
            .headers(wire_headers(message, Some(self.keys()))?)
            .payload(message.payload.clone().into());
        let sent = self.publisher().send_publish(message.subject.clone(), publish).await;
        sent.map_err(|error| classified(message, error))
    }
}

/// Answers as they come in, in whatever order.
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
        self.is_server_silent |= matches!(answer, Err(PublishError::Unknown { .. }));
        self.by_index[index] = Some(answer);
    }

    /// What has no answer was not sent, which to the caller is the same as not knowing.
    fn complete<M: AsRef<Outgoing>>(self, messages: &[M]) -> Vec<Result<Stored, PublishError>> {
        let answers = self.by_index.into_iter().zip(messages.iter().map(AsRef::as_ref));
        let completed = answers.map(|(answer, message)| {
            answer.unwrap_or_else(|| {
                Err(PublishError::Unknown {
                    id: message.id().to_owned(),
                    subject: message.subject.clone(),
                    source: "not sent, since the server did not answer to one before it".into(),
                })
            })
        });
        completed.collect()
    }
}

/// Headers for the wire, signed where there is a key. The library's own conversions panic on a line break, so they are not
/// used.
pub(crate) fn wire_headers(message: &Outgoing, keys: Option<&Keyring>) -> Result<HeaderMap, PublishError> {
    let malformed = |reason: String| PublishError::Malformed {
        id: message.id().to_owned(),
        subject: message.subject.clone(),
        reason,
    };
    let mut headers = HeaderMap::new();
    let mut set = |name: &str, value: &str| {
        // Our own names need no copy, and are good ones.
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
    // Over one that came with a stored message: it was for another.
    if let Some(signature) = keys.and_then(|keys| keys.sign(&message.subject, &message.headers, &message.payload)) {
        set(header::SIGNATURE, &signature)?;
    }
    Ok(headers)
}

/// What the client library says, in terms of what the caller can do about it.
fn classified(message: &Outgoing, error: jetstream::context::PublishError) -> PublishError {
    let (id, subject) = (message.id().to_owned(), message.subject.clone());
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => too_large(message),
        PublishErrorKind::StreamNotFound => PublishError::NoStream { id, subject },
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
            PublishError::Unknown {
                id,
                subject,
                source: error.into(),
            }
        }
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => PublishError::NotStored {
            id,
            subject,
            source: error.into(),
        },
        PublishErrorKind::Other => {
            let cause = error.source();
            if let Some(answer) = cause.and_then(|cause| cause.downcast_ref::<jetstream::Error>()) {
                match answer.error_code() {
                    ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
                        too_large(message)
                    }
                    _ => PublishError::NotStored {
                        id,
                        subject,
                        source: error.into(),
                    },
                }
            } else if let Some(reason) = cause.and_then(|cause| cause.downcast_ref::<SubjectError>()) {
                PublishError::Malformed {
                    id,
                    subject,
                    reason: reason.to_string(),
                }
            } else {
                // An answer that cannot be read, or a client that is closing.
                PublishError::Unknown {
                    id,
                    subject,
                    source: error.into(),
                }
            }
        }
    }
}

fn too_large(message: &Outgoing) -> PublishError {
    PublishError::TooLarge {
        id: message.id().to_owned(),
        subject: message.subject.clone(),
        bytes: message.payload.len(),
    }
}
