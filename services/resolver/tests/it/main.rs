//! Integration tests of this service, one binary. Batches are passed straight to the handler where the broker does not
//! matter (`scene.rs`); `stream.rs` and `replicas.rs` run the service with a real broker.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue must fail")]

mod batches;
mod ids;
mod items;
mod modes;
mod plans;
mod races;
mod receipts;
mod refusals;
mod replicas;
mod routes;
mod scene;
mod sessions;
mod stream;
mod sweeps;
mod twins;
