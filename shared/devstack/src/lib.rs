//! Everything Signalbox needs beside itself, started privately on this machine: nats-server, Postgres, and a scripted
//! agent in place of a model. Used by `signalbox up` and by tests; a deployment runs its own servers and none of this.
//!
//! In reading order:
//! - [`Devstack`]: both servers below one data directory. Starting again in the same directory finds the same data.
//! - [`NatsServer`], [`PostgresServer`]: one of them alone, with the switches that fault tests need.
//! - [`SharedPostgres`]: one Postgres for a whole test run, whose processes come and go.
//! - [`DemoAgent`]: what answers in place of a model.
//! - `binaries`, `launcher`, `credentials`: which program, how it is run so that nothing outlives us, who may connect.

mod binaries;
mod credentials;
mod demo_agent;
mod launcher;
mod nats;
mod postgres;
mod shared_postgres;
mod stack;

pub use demo_agent::DemoAgent;
pub use nats::{NatsOptions, NatsServer, NatsUsers};
pub use postgres::{PostgresOptions, PostgresServer};
pub use shared_postgres::SharedPostgres;
pub use stack::{Devstack, DevstackOptions};

/// What a server may lose when the machine, not the server, goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing that was acknowledged: every write reaches the disk first.
    Durable,
    /// Anything since the last write-back. For tests: killing a server loses nothing, and a run takes a third of the time.
    Fast,
}
