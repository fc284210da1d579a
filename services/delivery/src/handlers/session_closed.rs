//! A generation ended. A turn that waits for its next attempt is woken by this, to be ended.
//!
//! Consumes `{root}.session.closed.{account}.{task}`.
//! Decides nothing: the claim reads the session under lock.
//! Writes nothing.
//! Publishes nothing.

use contracts::{Root, session::SessionClosed};
use messaging::{BatchHandler, Incoming, Verdict};
use tokio::sync::mpsc;

use super::signal_each;
use crate::service::Signal;

pub struct SessionClosedHandler {
    pub root: Root,
    pub signals: mpsc::Sender<Signal>,
}

impl BatchHandler for SessionClosedHandler {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        signal_each(
            &self.root,
            &self.signals,
            batch,
            Signal::Closed,
            |message: SessionClosed| (message.account, message.session_id),
        )
        .await
    }
}
