//! Tests of the test support.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod fuzz;
mod fuzzer;
mod proxy;
mod proxy_postgres;
