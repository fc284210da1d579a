//! Tests of storage against a real Postgres, one binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attacker;
mod board;
mod branches;
mod cancelled_begin;
mod economy;
mod lifecycle;
mod neglected;
mod owner;
mod restarted;
mod succeed;
mod twins;
mod waiting;
mod walls;
