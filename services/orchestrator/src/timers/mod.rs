//! Timers: what happens once, at a time. `storage::timer` sets, clears and fires them; here they are listed and cleared on request,
//! and fired when they are due.

pub mod http;
pub mod store;
pub mod sweep;
