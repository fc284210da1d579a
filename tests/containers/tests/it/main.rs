//! Tests of the deployed image, in containers, through NATS and HTTP only. `make containers` runs them; they need a Docker
//! engine.
//!
//! With `SIGNALBOX_TARGET` (`make containers SIGNALBOX_TARGET=http://…`) the public scenario runs against an existing deployment:
//! a smoke test after an upgrade. Tests that read rows or logs are in `tests/it/` of the workspace.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bus;
mod load;
mod losses;
mod scenario;
mod town;
mod upgrade;
mod wait;
