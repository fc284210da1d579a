//! Decides which sessions get a turn now. [`admit`] is the rule for one session, pure; [`dispatcher`] holds this
//! process's waiting sessions, fair between accounts and within its limits; the [`conductor`] feeds it from
//! [`signal`]s. The notifications' queue itself is in Postgres.

mod admit;
pub mod conductor;
pub mod dispatcher;
pub mod signal;

pub use admit::{Admission, TurnFacts, admit};
