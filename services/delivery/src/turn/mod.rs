//! A turn, from the call that is due to the record of how it went.
//!
//! Between provider calls the turn is in Postgres: its input, and a [`journal`](crate::store::journal) of what the provider asked for. So any
//! replica carries it on. [`claim`] takes sessions; [`begin`] makes [`work`] of them, and [`resume`] says what is due of
//! a turn in progress (both pure); [`call`] makes the provider call. [`settle`] says what its outcome means and
//! [`change`] what that makes of the rows (both pure); [`recorder`] writes it, many turns at once. Both transactions
//! send [`messages`]. [`claiming`] and [`recording`] run them in batches.

use std::time::Duration;

use storage::StorageError;

pub mod begin;
pub mod call;
pub mod change;
pub mod claim;
pub mod claiming;
pub mod messages;
pub mod recorder;
pub mod recording;
pub mod resume;
pub mod settle;
pub mod work;

/// Between tries of a transaction that failed for a reason that passes.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long wake-ups and outcomes may come together after several have come at once: a transaction costs as much as many
/// of its sessions. A batch of one is processed immediately.
const GATHER: Duration = Duration::from_millis(3);

/// Whether a smaller batch may go through: a retry mends nothing, or the batch was too large.
fn is_of_the_batch(error: &StorageError) -> bool {
    !error.is_retryable() || error.is_too_much()
}
