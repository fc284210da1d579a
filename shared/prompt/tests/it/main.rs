//! Integration tests of this crate, one binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue must fail")]

mod fuzz;
mod golden;
mod past;
