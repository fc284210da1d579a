//! Errors of the bus. Every variant says what was attempted and, if it is not obvious, whether a retry may help; causes
//! are sources and not repeated in the text.

use std::{error::Error, time::Duration};

use contracts::Outgoing;
use time::OffsetDateTime;

/// A cause from the client library, whose error types differ by call.
pub(crate) type Cause = Box<dyn Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum BusError {
    #[error("the NATS URL cannot be read: {reason} (expected nats://user:password@host:port)")]
    Url { reason: String },
    #[error("NATS at {servers} could not be reached within {} s", waited.as_secs())]
    Unreachable {
        /// Host and port only: the URL carries a password.
        servers: String,
        waited: Duration,
        #[source]
        source: Option<Cause>,
    },
    #[error("NATS at {servers} refused the connection: check the user and password in the URL")]
    Refused {
        servers: String,
        #[source]
        source: Cause,
    },
    #[error("NATS server {found} is too old: Signalbox needs 2.12 or newer")]
    ServerTooOld { found: String },
    #[error(
        "NATS at {servers} accepts clients without a password: give it users (schemas/nats-users.conf) and remove no_auth_user"
    )]
    Open { servers: String },
    #[error("NATS at {servers} runs without JetStream: start it with -js or a jetstream block in its configuration")]
    NoJetStream { servers: String },
    #[error("NATS did not confirm the sent data")]
    Flush(#[source] Cause),
}

#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    #[error("{what} is missing on the NATS server: run `signalbox migrate` as a user that may create it")]
    Missing { what: String },
    #[error(
        "{what} on the NATS server differs from what Signalbox needs in {fields}: run `signalbox migrate` as a user that may change it"
    )]
    Drift { what: String, fields: String },
    #[error(
        "{what} on the NATS server differs from what Signalbox needs in {fields} and the server refused the change: set them by hand, or delete it and start again"
    )]
    Unchangeable {
        what: String,
        fields: String,
        #[source]
        source: Cause,
    },
    #[error(
        "{what} has persist_mode async, which acknowledges messages before they are stored: delete it and start again"
    )]
    AsyncPersist { what: String },
    #[error("{what} could not be created")]
    Create {
        what: String,
        #[source]
        source: Cause,
    },
    /// A user without the permission gets no answer either.
    #[error("{what} could not be looked up (no connection, or no permission for the JetStream API)")]
    Lookup {
        what: String,
        #[source]
        source: Cause,
    },
}

#[derive(Debug, thiserror::Error)]
#[error("could not publish message {id} on {subject}")]
pub struct PublishError {
    pub id: String,
    pub subject: String,
    #[source]
    pub reason: Unpublished,
}

/// Why a message was not published, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum Unpublished {
    /// The message never fits.
    #[error("it has {bytes} bytes and its headers, over the server's limit")]
    TooLarge { bytes: usize },
    /// A line break in a header, or a subject with a blank. The message is never accepted.
    #[error("it cannot be encoded: {0}")]
    Malformed(String),
    /// The message may be stored. Retry with the same id.
    #[error("no acknowledgement came: whether it is stored is unknown")]
    Unknown(#[source] Cause),
    #[error("no stream takes its subject: the topology is missing or the root differs")]
    NoStream,
    /// The stream is full, or the server cannot write: a retry may help once that is repaired.
    #[error("the server did not store it")]
    NotStored(#[source] Cause),
}

impl PublishError {
    pub(crate) fn new(message: &Outgoing, reason: Unpublished) -> PublishError {
        PublishError {
            id: message.id().to_owned(),
            subject: message.subject.clone(),
            reason,
        }
    }

    /// Whether the same message may be accepted later.
    pub fn is_retryable(&self) -> bool {
        match self.reason {
            Unpublished::TooLarge { .. } | Unpublished::Malformed(_) => false,
            Unpublished::Unknown(_) | Unpublished::NoStream | Unpublished::NotStored(_) => true,
        }
    }
}

/// Reading a partition ended. In every case the caller opens a new reader at the stored offset, so no variant is
/// retryable on the same reader.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the stream of notifications could not be looked up")]
    Lookup(#[source] Cause),
    #[error("the notifications up to {up_to_sequence} could not be purged")]
    Purge {
        up_to_sequence: u64,
        #[source]
        source: Cause,
    },
    /// The stream's tail was lost (a power failure before it reached the disk) or its content is another's: the
    /// messages now at or before the offset were not read. See [`crate::StreamOffset`].
    #[error(
        "the stream no longer holds what partition {partition} read at {sequence}: its content was rewritten (last sequence now {last_sequence})"
    )]
    Rewritten {
        partition: u16,
        sequence: u64,
        last_sequence: u64,
        /// When the message that now has this sequence was published; none if the stream ends before it.
        found: Option<OffsetDateTime>,
    },
    #[error("partition {partition}: the connection was lost during a read")]
    Reconnected { partition: u16 },
    #[error("partition {partition} could not be read")]
    Lost {
        partition: u16,
        #[source]
        source: Option<Cause>,
    },
}
