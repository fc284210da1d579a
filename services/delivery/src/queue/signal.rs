//! What workers tell the conductor.

use domain::AccountId;
use tokio::sync::mpsc;

use crate::store::SessionName;

/// What the conductor is told.
#[derive(Debug)]
pub enum Signal {
    /// These sessions may have something to do.
    Wake(Vec<SessionName>),
    /// These sessions were closed, and may have a turn to end.
    Closed(Vec<SessionName>),
    /// These sessions left our hands; `true`: there is more to do.
    Free(Vec<(SessionName, bool)>),
    /// These sessions were left as they are, since their providers have no slot free.
    WithoutSlot(Vec<(SessionName, String)>),
    /// Accounts' own limits, as just read.
    Limits(Vec<(AccountId, Option<i32>)>),
    /// The claimer can take a batch.
    Idle,
}

/// Refused only when the conductor has ended with the process.
pub async fn tell(signals: &mpsc::Sender<Signal>, signal: Signal) {
    let _ = signals.send(signal).await;
}
