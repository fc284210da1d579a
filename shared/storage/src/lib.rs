//! State in Postgres: the pool with its guards, the schema and its migrations, the entities, the outbox, dead letters,
//! replicas, holds ([`hold`]), timers ([`timer`]), tool policies ([`tool_policy`]), what is done about stalled work ([`recovery`]), the
//! fitness check ([`fitness`]), and the few writes that span two owners ([`lifecycle`]). Knows nothing of the broker.
//!
//! Every read and write goes through a [`Tx`] that declared its accounts: row-level security shows no rows to a
//! transaction that declared none. Hot statements are named constants in the services' `store.rs`; entities serve the
//! rest.

pub mod accepted;
pub mod accounts;
mod activity;
pub mod api_key;
pub mod breaker;
pub mod connection;
pub mod database;
pub mod dead_letter;
pub mod directory;
pub mod entity;
pub mod error;
pub mod fitness;
pub mod hold;
pub mod identity;
pub mod lifecycle;
pub mod migrations;
pub mod outbox;
pub mod parts;
pub mod persona;
pub mod replica;
pub mod session;
mod setting;
pub mod statement;
pub mod timer;
pub mod tool_policy;

pub use accounts::Accounts;
pub use database::{Database, DatabaseOptions, Role, Tx};
pub use error::StorageError;
pub use lifecycle::{question, recovery};
pub use parts::Parts;
pub use setting::Setting;
pub use statement::statement;
