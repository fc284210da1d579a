//! Whole-system scenarios: real broker, real database, all four services, seen through the public contract.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(feature = "chaos")]
mod age;
mod agent_http;
mod architecture;
mod artifacts;
mod audit;
mod brakes;
mod branches;
mod broker_lost;
mod builds;
mod choices;
mod closing;
mod contexts;
mod contract;
#[cfg(debug_assertions)]
mod crash_points;
mod crossing;
mod deletions;
mod documents;
mod economy;
mod fair;
mod guests;
mod handover;
mod holds;
mod house;
mod isolation;
mod limits;
mod load;
mod mail;
mod models;
mod one_notification;
mod orchestrators;
#[cfg(feature = "chaos")]
mod planted;
mod questions;
mod queue;
mod refusals;
mod replays;
mod restarts;
mod same_end;
mod secrets;
mod senders;
mod servers;
mod settings;
mod simulated;
#[path = "../simulation/mod.rs"]
mod simulation;
mod subjects;
mod telemetry_files;
mod timers;
mod tracing;
mod up;
mod walls;

/// Whether tests run at full length, as in `make nightly`. On every change they run a part.
fn is_nightly() -> bool {
    std::env::var_os("SIGNALBOX_NIGHTLY").is_some()
}
