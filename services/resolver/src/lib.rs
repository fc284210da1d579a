//! Resolver: finds or opens the one session that a notification belongs to.
//!
//! Replicas share the partitions of the notification stream ([`partitions`]); each is read by one of them, in order,
//! from a place that lies in Postgres. A batch of messages is read and decided by pure functions ([`intake`]): who is
//! to act, was this said before, which conversation is it. [`handlers::notification`] writes what was decided, in one
//! transaction with the partition's place: a row in the session's queue, the next generation where none is active, or
//! a dead letter that says why not. Then delivery is woken.
//!
//! [`sweeps`] remove what is over. Every query is in [`store`]; [`service`] wires it all.

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
