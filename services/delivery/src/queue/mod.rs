//! Which sessions get a turn now. [`admit`] is the rule for one session, pure; [`dispatcher`] keeps what waits in this
//! process, fair between accounts and within its limits. The queue itself is in Postgres.

mod admit;
pub mod dispatcher;

pub use admit::{Admission, SessionFacts, TurnFacts, admit};
