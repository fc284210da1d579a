//! Decides which sessions get a turn now. [`admit`] is the rule for one session, and [`run`] for the items of its turn, both pure;
//! [`dispatcher`] holds this
//! process's waiting sessions, fair between accounts and within its limits; the [`conductor`] feeds it from
//! [`signal`]s. The notifications' queue itself is in Postgres.

mod admit;
pub mod alarm;
pub mod conductor;
pub mod dispatcher;
pub mod run;
pub mod signal;

pub use admit::{Admission, TurnFacts, admit};
