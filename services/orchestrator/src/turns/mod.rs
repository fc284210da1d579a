//! Turns: what an agent was told, what it did, what it said, what it cost. Written by delivery and the tool-gateway,
//! read here whole.

pub mod http;
pub mod store;
