//! Every query of this service. Transaction first, account always; one statement for a whole batch.
//!
//! [`branches`] reads what branches start from, [`claim`] turns in progress, [`holds`] what is paused, [`context`] reads the inputs of a prompt, [`past`] the turns before it,
//! [`plans`] what awaits approval, [`runs`] the further
//! items of one, [`replays`] what replays run again, [`refused`] reads a notification for its dead letter. All writes of delivery are verbs of `storage::session`.

pub mod branches;
pub mod claim;
pub mod context;
pub mod holds;
pub mod journal;
pub mod past;
pub mod plans;
pub mod refused;
pub mod replays;
pub mod runs;

pub use storage::session::{SessionName, TurnName};
