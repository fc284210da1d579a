//! Delivery: runs the agents' turns.
//!
//! A wake-up names a session with work ([`handlers`], [`sweeps`]). The [`queue`] decides when the session may be
//! claimed; the claim takes its lease and fence and writes the turn ([`turn`]) with its prompt ([`context`], [`prompt`]). A driver
//! of [`providers`] makes the call, with no transaction open. The outcome is recorded in a batch, in one transaction,
//! under the fence. A reply ends the turn. Tool calls are passed on, and the turn waits in Postgres, without a lease,
//! until any replica resumes it. A failed call is retried, looked up, or fails the turn; where all calls of a provider fail, none
//! is made ([`breaker`]).
//!
//! [`service`] wires the parts; every query is in [`store`].

pub mod breaker;
pub mod context;
pub mod handlers;
pub mod metrics;
pub mod provider_check;
pub mod providers;
pub mod queue;
pub mod service;
pub mod settings;
pub mod store;
pub mod sweeps;
pub mod turn;

pub use service::start;

/// `ce-source` of what this service publishes.
pub const SOURCE: &str = "/signalbox/delivery";
