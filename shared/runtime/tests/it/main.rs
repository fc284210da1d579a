//! The parts of a process that need a real Postgres, a real broker or a process of their own.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod context;
mod dead;
mod outbox;
mod replica;
mod telemetry;
mod unread;
mod world;
