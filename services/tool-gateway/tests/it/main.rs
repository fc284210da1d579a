//! The tool-gateway with a real Postgres and a real broker. Requests come over the bus and over HTTP, as delivery and
//! agents send them. Effects are read from the database and from the bus.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod account;
mod asking;
mod board;
mod branches;
mod capability;
mod contexts;
mod effects;
mod guests;
mod history;
mod http;
mod late;
mod later;
mod memories;
mod models;
mod once;
mod plans;
mod policies;
mod questions;
mod world;
