//! Tasks: made, assigned and moved by people and services here, moved by agents through the tool-gateway.

pub mod http;
pub mod store;
