//! The system as it is deployed: its image, in containers, seen through NATS and HTTP only. `make containers` runs it where a
//! Docker engine answers; nothing else on the machine can stand in for one.
//!
//! With `SIGNALBOX_TARGET` (`make containers SIGNALBOX_TARGET=http://…`) the public scenario runs against a deployment that is there:
//! a smoke test after an upgrade. Not for what needs a look inside: `tests/it/` has that.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bus;
mod load;
mod losses;
mod scenario;
mod town;
mod upgrade;
mod wait;
