//! From a message to a queue position in a session. All modules but [`sessions`] and [`refusals`] are pure.
//!
//! In reading order: [`received`] (parses the message), [`facts`] (what must be known), [`decide`] (accepted,
//! duplicate, or refused), [`batch`] (all decisions of a batch, and its rows), [`resolve`] (which session),
//! [`sessions`] (locks it or opens it), [`refusals`] (what a refusal writes). A batch that names what earlier ones named
//! goes by their [`routes`].

pub mod batch;
pub mod decide;
pub mod facts;
pub mod received;
pub mod refusals;
pub mod resolve;
pub mod routes;
pub mod sessions;
