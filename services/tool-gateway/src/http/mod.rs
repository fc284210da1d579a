//! `/agent/*`: tools for agents whose provider has no tool calls (S10). The same tools, checks and records as on the bus.
//!
//! A request presents a gateway key of the account and the key of a session of that account. Both are looked up in the
//! database at every request, so there is no registration and a restart loses nothing.

mod caller;
mod openapi;
mod routes;

#[cfg(test)]
pub(crate) use caller::{bearer, session_key};
pub use openapi::openapi;
pub(crate) use routes::routes;
