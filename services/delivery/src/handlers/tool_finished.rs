//! A tool call has its result. When it was the last one missing, the turn goes on, on the same session key (S8).
//!
//! Consumes `{root}.tool.finished.{account}.{task}`.
//! Decides nothing: the claim reads the session under lock.
//! Writes nothing.
//! Publishes nothing.

use contracts::{Root, tool::ToolFinished};
use messaging::{BatchHandler, Incoming, Verdict};
use tokio::sync::mpsc;

use super::signal_each;
use crate::service::Signal;

pub struct ToolFinishedHandler {
    pub root: Root,
    pub signals: mpsc::Sender<Signal>,
}

impl BatchHandler for ToolFinishedHandler {
    async fn handle(&self, batch: &[Incoming]) -> Vec<Verdict> {
        signal_each(
            &self.root,
            &self.signals,
            batch,
            Signal::Wake,
            |message: ToolFinished| (message.account, message.session_id),
        )
        .await
    }
}
