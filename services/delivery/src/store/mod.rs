//! Every query of this service. Transaction first, account always; one statement for a whole batch.
//!
//! [`claim`] reads turns in progress, [`context`] reads what a prompt is made of, [`refused`] reads a notification back for its
//! dead letter. What delivery writes is written by the verbs of `storage::session`.

pub mod claim;
pub mod context;
pub mod journal;
pub mod refused;

pub use storage::session::{SessionName, TurnName};
