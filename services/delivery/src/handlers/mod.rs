//! Messages that delivery consumes. All are wake-ups: what is to be done is in Postgres, so a handler notes the session
//! and is done, and a lost or repeated message costs time at most.
//!
//! | subject | file |
//! |---|---|
//! | `{root}.session.resolved.>` | `session_resolved.rs` |
//! | `{root}.session.closed.>` | `session_closed.rs` |
//! | `{root}.tool.finished.>` | `tool_finished.rs` |

mod session_closed;
mod session_resolved;
mod tool_finished;

pub use session_closed::SessionClosedHandler;
pub use session_resolved::SessionResolvedHandler;
pub use tool_finished::ToolFinishedHandler;

use contracts::{
    Root,
    addressed::{self, Addressed},
};
use messaging::{Incoming, Verdict};
use tokio::sync::mpsc;

use crate::{service::Signal, store::SessionName};

/// Reads each message of a batch and signals the sessions that they name.
async fn signal_each<M: Addressed>(
    root: &Root,
    signals: &mpsc::Sender<Signal>,
    batch: &[Incoming],
    signal: fn(Vec<SessionName>) -> Signal,
    name: fn(M) -> SessionName,
) -> Vec<Verdict> {
    let mut names = Vec::with_capacity(batch.len());
    let verdicts = batch
        .iter()
        .map(
            |incoming| match addressed::read::<M>(root, &incoming.subject, &incoming.payload) {
                Ok(message) => {
                    names.push(name(message));
                    Verdict::Done(Vec::new())
                }
                Err(error) => Verdict::Dead {
                    reason: error.reason().to_owned(),
                    detail: error.to_string(),
                },
            },
        )
        .collect();
    // An error means that the process is stopping; the sweep of another finds the sessions.
    let _ = signals.send(signal(names)).await;
    verdicts
}
