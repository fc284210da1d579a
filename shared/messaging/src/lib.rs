//! The bus: JetStream as the services see it. Bytes and headers, not business.
//!
//! The cast: [`Bus`] is a cheap handle over one connection. [`topology`] names every stream, consumer and limit, and
//! makes or checks them. [`publish`] sends messages and waits for the broker's acknowledgements. [`Consumer`] pulls
//! batches from a durable consumer, hands them to a [`BatchHandler`] and turns its [`Verdict`]s into acknowledgements,
//! delayed redeliveries and dead letters. [`PartitionReader`] reads one partition of the notifications from a place
//! that the caller keeps (in Postgres, in its own transaction), by sequence and without a consumer. [`trace`] carries the W3C
//! trace context through headers. [`envelope`] signs what is published and tells what is forged; [`users`] is who may do what on the server.
//! `backlog` asks how much waits; `deletions` says what somebody has deleted.
//!
//! The plot, for everything but notifications: pull → authenticate → handle → publish what follows → acknowledge. A crash anywhere
//! brings the input back, and the same input gives the same messages again. Nothing here is a guarantee of "once":
//! acknowledgements get lost, redeliveries come out of order, and a publish that timed out may have been stored. Once
//! and in order is what Postgres says.
//!
//! Deliberately absent: storage (a dead letter's row is the business of whoever implements [`DeadLetterSink`]),
//! subjects (`contracts::subject`), and any work on a payload.

pub mod topology;

mod backlog;
mod batch;
mod connect;
mod consumer;
mod delay;
mod deletions;
pub mod envelope;
mod error;
mod incoming;
mod meters;
mod one_message;
mod partition;
mod postponed;
mod prefix;
pub mod publish;
mod stored;
pub mod trace;
mod url;
pub mod users;

pub use backlog::{ConsumerBacklog, StreamFill, consumer_backlogs, stream_fills};
pub use batch::{BatchHandler, BuryError, DeadLetterSink, DeadMessage, UNAUTHENTICATED, Verdict};
pub use connect::{Bus, BusOptions, ServerVersion};
pub use consumer::{Consumer, ConsumerOptions};
pub use deletions::watch_deletions;
pub use envelope::Keyring;
pub use error::{BusError, PublishError, ReadError, TopologyError};
pub use incoming::Incoming;
pub use partition::{
    PartitionReader, StreamIdentity, StreamOffset, Unread, first_unread, is_same_moment, notification_stream_identity,
    purge_consumed,
};
pub use publish::Stored;
pub use topology::{Durable, Provision, Stream, Topology, TopologyLimits, streams_read};
pub use users::{Rights, User};
