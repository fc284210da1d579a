//! The API against a real Postgres, through its router and with keys that it issued. Published messages are read from the outbox;
//! `service.rs` runs the whole service on a real broker.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod accounts;
mod agents;
mod audit;
mod branches;
mod contexts;
mod dead_letters;
mod diff;
mod handover;
mod holds;
mod idempotency;
mod log;
mod messages;
mod notifications;
mod openapi;
mod pages;
mod plans;
mod policies;
mod problems;
mod prompted;
mod providers;
mod questions;
mod queue;
mod recovery;
mod replies;
mod resets;
mod seed;
mod service;
mod sessions;
mod stages;
mod stops;
mod tasks;
mod timers;
mod twins;
mod walls;
mod world;
