//! The bus: JetStream as the services use it. It carries bytes and headers and knows no domain rules.
//!
//! [`Bus`] is a cheap handle over one connection. [`topology`] names every stream, consumer and limit, and creates or
//! verifies them. [`publish`] sends messages and waits for the broker's acknowledgements. [`Consumer`] pulls batches
//! from a durable consumer, passes them to a [`BatchHandler`] and turns its [`Verdict`]s into acknowledgements, delayed
//! redeliveries and dead letters. [`PartitionReader`] reads one partition of the notifications from an offset that the
//! caller stores (in Postgres, in its own transaction), by sequence and without a consumer. [`trace`] carries the W3C
//! trace context through headers. [`envelope`] signs published messages and detects forged ones; [`users`] defines the
//! permissions on the server, and [`callout`] answers who a client is that holds an API key; [`event_consumer`] makes what
//! it reads from, `connections` ends its connections. `backlog` reads the backlogs; `deletions` watches for deleted
//! streams and consumers.
//!
//! All messages but notifications take these steps: pull → authenticate → handle → publish the outgoing messages →
//! acknowledge. After a crash at any step the input is redelivered, and the same input gives the same messages again.
//! The bus does not guarantee exactly-once delivery or order: acknowledgements get lost, redeliveries come out of
//! order, and a publish that timed out may have been stored. Postgres guarantees once and in order.
//!
//! Deliberately absent: storage (an implementation of [`DeadLetterSink`] writes a dead letter's row), subjects
//! (`contracts::subject`), and any processing of a payload.

pub mod topology;

mod backlog;
mod batch;
pub mod callout;
mod connect;
mod connections;
mod consumer;
mod delay;
mod deletions;
pub mod envelope;
mod error;
pub mod event_consumer;
mod hear;
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
pub use connections::{connections_count, disconnect};
pub use consumer::{Consumer, ConsumerOptions};
pub use deletions::watch_deletions;
pub use envelope::Keyring;
pub use error::{BusError, PublishError, ReadError, TopologyError, Unpublished};
pub use hear::hear;
pub use incoming::Incoming;
pub use partition::{
    PartitionReader, StreamIdentity, StreamOffset, Unread, first_unread, is_same_moment, notification_stream_identity,
    purge_consumed,
};
pub use publish::Stored;
pub use topology::{Durable, Provision, Stream, Topology, TopologyLimits, streams_read};
pub use users::User;
