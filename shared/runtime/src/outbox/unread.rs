//! The sweep over messages that were published and are not read yet.
//!
//! An unavailable reader alone is no reason to publish a message again: the broker is asked first whether it still has
//! the message, and only a lost message is published again, unchanged. Every replica runs the sweep, each on rows of
//! its own service that no other replica has claimed.

use contracts::Outgoing;
use messaging::{Stored, Stream};
use storage::{
    StorageError,
    outbox::{
        OutboxRow, Settled,
        unread::{Due, UnreadCheck, UnreadRow, outbox_look},
    },
};
use tracing::warn;

use super::{BATCH_BYTES_MAX, Batch, Relay, millis, payload_bytes};

impl Relay {
    /// One batch.
    pub(super) async fn look_once(&self) -> Result<Batch, StorageError> {
        let rows_max = self.settings.batch_messages_max;
        let look = UnreadCheck {
            every_ms: millis(self.settings.unread_look_ms.duration()),
            again_ms: millis(self.settings.unread_again_ms.duration()),
            kept_ms: self.settings.unread_kept_hours.get() as i64 * 60 * 60 * 1000,
            rows_max: i64::from(rows_max.get()),
            bytes_max: BATCH_BYTES_MAX as i64,
        };
        let unread = outbox_look(&self.database, &look).await?;
        let batch = Batch {
            rows: unread.len(),
            more: unread.len() >= rows_max.usize()
                || payload_bytes(unread.iter().map(|one| &one.row)) >= BATCH_BYTES_MAX,
        };
        let (mut check, mut again, mut expired) = (Vec::new(), Vec::new(), Vec::new());
        for unread in unread {
            match unread.due {
                Due::Check => check.push(unread),
                Due::Again => again.push(unread.row),
                Due::GiveUp => expired.push(unread.row),
            }
        }
        let lost = self.lost(check).await;
        if !lost.is_empty() {
            warn!(
                messages = lost.len(),
                "the broker lost unread messages; publishing them again"
            );
        }
        again.extend(lost);
        if !again.is_empty() {
            // Ids are in time order: within one writer this is the order of its transactions.
            again.sort_by_key(|row| row.id);
            self.relay(again, "unread").await;
        }
        self.bury_expired(expired).await;
        Ok(batch)
    }

    /// The rows whose messages the broker no longer has.
    async fn lost(&self, unread: Vec<UnreadRow>) -> Vec<OutboxRow> {
        // One message each: only single messages are awaited.
        let questions: Vec<_> = unread
            .iter()
            .flat_map(|unread| unread.row.messages.iter().map(|message| (unread.sequence, message)))
            .map(|(sequence, message)| (stream(message), Stored { sequence }, message))
            .collect();
        let there = self.bus.still_has(&questions).await;
        unread
            .into_iter()
            .zip(there)
            .filter(|(_, is_there)| !is_there)
            .map(|(unread, _)| unread.row)
            .collect()
    }

    async fn bury_expired(&self, rows: Vec<OutboxRow>) {
        let mut settled = Settled::default();
        for row in rows {
            let detail =
                "this message was not read within the time that it is kept: check that its reader runs, then redrive";
            let mut is_buried = true;
            for message in &row.messages {
                is_buried &= self.bury(message, "unread", detail).await;
            }
            if is_buried {
                settled.over.push(row.key());
            }
        }
        self.settle(settled).await;
    }
}

/// The stream of an awaited message.
fn stream(message: &Outgoing) -> Stream {
    // Only awaited messages have unread rows. For any other, the broker will not know the receipt.
    contracts::message::awaited(&message.subject).unwrap_or(Stream::Event)
}
