//! A turn, from its due call to the record of the outcome.
//!
//! Between provider calls the turn is in Postgres: its input, and a [`journal`](crate::store::journal) of the
//! provider's answers. So any replica can resume it. [`claim`] takes sessions; [`begin`] makes [`work`] of them, and
//! [`resume`] decides the due call of a turn in progress (both pure); [`call`] makes the provider call. [`settle`]
//! decides what its outcome means and [`change`] computes the row changes (both pure); [`recorder`] writes them, many
//! turns at once. A claim starts turns, and so does the record of a session's last turn: [`starter`]. [`branching`] reads what branches
//! start from, and [`folding`] ends them; [`succeed`] ends generations; [`replaying`] makes turns of records. Both transactions send [`messages`]; [`defer`] keeps turns in progress waiting for their provider; [`inject`] gives waiting items to a turn that goes on after its tools; [`profiles`] caches instructions, [`personas`] the files in them; [`identities`] reads what orchestrators' say; [`started`] says from memory that a turn has begun. [`claiming`] and [`recording`] run them in
//! batches; [`workers`] run the turns, and [`stop`] drops the calls of those that are to end.

use std::time::Duration;

use storage::StorageError;

pub mod begin;
mod branching;
pub mod call;
pub mod change;
pub mod claim;
pub mod claiming;
pub mod defer;
mod folding;
mod identities;
pub mod inject;
pub mod messages;
pub mod personas;
pub mod profiles;
pub mod recorder;
pub mod recording;
mod replaying;
pub mod resume;
pub mod settle;
pub mod started;
pub mod starter;
pub mod stop;
pub mod succeed;
pub mod work;
pub mod workers;

/// Pause before a retry of a transaction that failed with a transient error.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long to collect wake-ups and outcomes after a batch of several: a transaction costs as much as many of its
/// sessions. A batch of one is processed immediately.
const GATHER: Duration = Duration::from_millis(3);

/// Whether a smaller batch may succeed: the error is not transient, or the batch was too large.
fn is_of_the_batch(error: &StorageError) -> bool {
    !error.is_retryable() || error.is_too_much()
}
