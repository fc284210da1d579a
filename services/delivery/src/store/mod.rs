//! Every query of this service. Transaction first, account always; one statement for a whole batch.
//!
//! [`claim`] takes sessions and their turns, [`context`] reads what a prompt is made of, [`begin`] writes new turns,
//! [`record`] writes outcomes. Delivery owns `turn` and `instruction_text`, and the lease and queue columns of
//! `session` and `notification`; it reads the rest. [`refused`] reads a notification back for its dead letter.

pub mod begin;
pub mod claim;
pub mod context;
pub mod record;
pub mod refused;

use domain::{AccountId, SessionId, TurnId};

/// A session, as everything here names it: account first.
pub type SessionName = (AccountId, SessionId);

/// A turn, the same way. Ids are unique inside an account and nowhere else.
pub type TurnName = (AccountId, TurnId);
