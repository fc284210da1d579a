//! From a message to a place in a session's queue. Everything here but [`sessions`] and [`refusals`] is pure.
//!
//! In reading order: [`received`] (the message, read), [`facts`] (what must be
//! known), [`decide`] (accepted, known already, or refused), [`batch`] (all decisions of a batch, and its rows),
//! [`resolve`] (which session), [`sessions`] (locks it or opens it), [`refusals`] (what a refusal leaves behind).

pub mod batch;
pub mod decide;
pub mod facts;
pub mod received;
pub mod refusals;
pub mod resolve;
pub mod sessions;
