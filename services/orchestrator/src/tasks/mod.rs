//! Tasks. People and services create, assign and move them here; agents move them through the tool-gateway.

pub mod http;
pub mod next;
pub mod store;
