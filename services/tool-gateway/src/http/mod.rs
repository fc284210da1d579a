//! `/agent/*`: tools for agents whose provider has no tool calls (S10), with the same checks and records as on the bus; and uploads of
//! files.
//!
//! A request presents a gateway key of the account and the key of a session of that account. Both are looked up in the
//! database at every request, so there is no registration and a restart loses nothing.

mod artifacts;
mod caller;
mod openapi;
mod routes;

pub(crate) use artifacts::UPLOAD_PATH;
#[cfg(test)]
pub(crate) use caller::{bearer, session_key};
pub use openapi::openapi;
pub(crate) use routes::routes;
