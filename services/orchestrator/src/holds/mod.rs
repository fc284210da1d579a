//! Holds: what people have paused. `storage::hold` sets and releases them, delivery asks them; here they are requested, listed,
//! and settled in pieces.

pub mod http;
pub mod store;
pub mod sweep;
