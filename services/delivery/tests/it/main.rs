//! Integration tests of this service, one binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue must fail")]

mod brakes;
mod branches;
mod breaker;
mod claims;
mod edits;
mod failures;
mod fairness;
mod gateway;
mod going_on;
mod holds;
mod impossible;
mod inject;
mod interrupted;
mod no_progress;
mod overdue;
mod plans;
mod policies;
mod provider_check;
mod providers;
mod questions;
mod scene;
mod slots;
mod slow;
mod succeed;
mod threads;
mod told;
mod turns;
mod twins;
