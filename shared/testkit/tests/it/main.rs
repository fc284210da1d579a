//! What tests stand on, tested itself.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fuzz;
mod fuzzer;
mod proxy;
mod proxy_postgres;
