//! Integration tests of this service, one binary. Batches go straight into the handler where the broker does not matter
//! (`scene.rs`); `stream.rs` and `replicas.rs` run the service against a real one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod batches;
mod ids;
mod items;
mod plans;
mod races;
mod receipts;
mod refusals;
mod replicas;
mod scene;
mod sessions;
mod stream;
mod sweeps;
mod twins;
