//! Resolver: finds or opens the one session that a notification belongs to.
//!
//! Replicas share the partitions of the notification stream ([`partitions`]). One replica reads a partition, in order,
//! from an offset in Postgres. Pure functions parse and decide a batch of messages ([`intake`]): the recipients,
//! whether it is a duplicate, and the conversation. [`handlers::notification`] writes the decisions in one transaction
//! with the partition's offset: a row in the session's queue, the next generation where none is active, or a dead
//! letter with the reason. Then delivery is woken.
//!
//! [`sweeps`] delete expired rows and consumed messages. Every query is in [`store`]; [`service`] wires the parts.

pub mod handlers;
pub mod intake;
pub mod metrics;
pub mod partitions;
pub mod service;
pub mod settings;
pub mod spans;
pub mod store;
pub mod sweeps;

pub use service::start;

/// `ce-source` of what this service publishes.
pub const SOURCE: &str = "/signalbox/resolver";
