//! Delivery: runs the agents' turns.
//!
//! A wake-up says that a session has work ([`handlers`], [`sweeps`]). The [`queue`] decides whether it may be seen to
//! now; the claim takes its lease and fence and writes the turn ([`turn`]), whose words the [`prompt`] chooses. A driver
//! of [`providers`] makes the call, with no transaction open. The outcome is recorded with many others in one
//! transaction, under the fence: a reply ends the turn; tool calls are passed on, and the turn waits in Postgres,
//! without a lease, until any replica carries it on; a failure is tried again, looked up, or given up.
//!
//! [`service`] wires it; every query is in [`store`].

pub mod handlers;
pub mod metrics;
pub mod prompt;
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
