//! Signalbox's dependencies, started privately on this machine: nats-server, Postgres, and a scripted agent in place of
//! a model. Used by `signalbox up` and by tests; a deployment runs its own servers.
//!
//! In reading order:
//! - [`Devstack`]: both servers below one data directory. A restart in the same directory finds the same data.
//! - [`NatsServer`], [`PostgresServer`]: one of them alone, with the switches that fault tests need.
//! - [`SharedPostgres`]: one Postgres for a whole test run of many processes.
//! - [`DemoAgent`]: answers in place of a model.
//! - `binaries`, `launcher`, `credentials`: which program runs, how it is kept from outliving this process, who may
//!   connect.

mod binaries;
mod credentials;
mod demo_agent;
mod launcher;
mod nats;
mod postgres;
mod shared_postgres;
mod stack;

pub use credentials::write_private;
pub use demo_agent::DemoAgent;
pub use nats::{NatsOptions, NatsServer, NatsUsers};
pub use postgres::{PostgresOptions, PostgresServer};
pub use shared_postgres::SharedPostgres;
pub use stack::{Devstack, DevstackOptions, data_dir_open};

/// The writes that a server may lose when the machine, not the server, fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// No acknowledged write: every write reaches the disk first.
    Durable,
    /// Writes since the last write-back. For tests: killing a server loses nothing, and a run takes a third of the
    /// time.
    Fast,
}
