//! The signals of workers to the conductor.

use std::collections::HashSet;

use domain::AccountId;
use tokio::sync::{mpsc, oneshot};

use crate::store::SessionName;

/// A session in its place.
#[derive(Debug)]
pub struct Stay {
    pub name: SessionName,
    pub provider: String,
    pub brief: bool,
}

/// A signal to the conductor.
#[derive(Debug)]
pub enum Signal {
    /// These sessions may have work.
    Wake(Vec<SessionName>),
    /// These sessions were closed, or asked to stop, and may have a turn to end.
    Ending(Vec<SessionName>),
    /// These sessions were released; `true`: the session has more work.
    Free(Vec<(SessionName, bool)>),
    /// These sessions were left unchanged, since their providers have no free slot.
    WithoutSlot(Vec<(SessionName, String)>),
    /// Whether these busy sessions may start their next turns in their places. The answer has those that may.
    MayGoOn(Vec<Stay>, oneshot::Sender<HashSet<SessionName>>),
    /// Accounts' own limits, as just read.
    Limits(Vec<(AccountId, Option<i32>)>),
    /// The claimer can take a batch.
    Idle,
}

/// The send fails only when the conductor has ended with the process.
pub async fn tell(signals: &mpsc::Sender<Signal>, signal: Signal) {
    let _ = signals.send(signal).await;
}
