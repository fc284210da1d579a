//! The resolver put work into a session's queue.
//!
//! Consumes `{root}.session.resolved.{account}.{task}`.
//! Decides nothing: the claim reads the session under lock.
//! Writes nothing.
//! Publishes nothing.

use contracts::{Root, session::SessionResolved};
use messaging::{BatchHandler, Incoming, Verdict};
use tokio::sync::mpsc;

use super::signal_each;
use crate::service::Signal;

pub struct SessionResolvedHandler {
    pub root: Root,
    pub signals: mpsc::Sender<Signal>,
}

impl BatchHandler for SessionResolvedHandler {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        signal_each(
            &self.root,
            &self.signals,
            batch,
            Signal::Wake,
            |message: SessionResolved| (message.account, message.session_id),
        )
        .await
    }
}
