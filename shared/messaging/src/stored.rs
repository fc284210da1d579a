//! Checks whether the broker still has acknowledged messages. A wiped store lacks them, and so does one that lost its
//! tail, though other messages may have the same sequences by now.

use async_nats::jetstream::stream::Stream as RawStream;
use contracts::{Outgoing, header};
use futures::StreamExt;

use crate::{Bus, Stored, Stream};

/// Concurrent requests.
const QUESTIONS_MAX: usize = 64;

impl Bus {
    /// For each message, whether the broker has it at its sequence: identified by its receipt, which is unique. `false`
    /// also without a reply: publishing a stored message again costs no more than a duplicate.
    pub async fn still_has(&self, messages: &[(Stream, Stored, &Outgoing)]) -> Vec<bool> {
        // By index, since a future that borrows from an iterator's item is not general enough for a spawned worker.
        let questions = (0..messages.len()).map(|index| async move {
            let (stream, stored, message) = messages[index];
            let Ok(stream) = self.jetstream().get_stream_no_info(stream.name(self.root())).await else {
                return false;
            };
            has(&stream, stored, message).await
        });
        futures::stream::iter(questions).buffered(QUESTIONS_MAX).collect().await
    }
}

async fn has<T>(stream: &RawStream<T>, stored: Stored, message: &Outgoing) -> bool {
    let receipt = message.headers.get(header::RECEIPT);
    match stream.get_raw_message(stored.sequence).await {
        Ok(there) => receipt.is_some() && there.headers.get(header::RECEIPT).map(|value| value.as_str()) == receipt,
        Err(error) => {
            tracing::debug!(sequence = stored.sequence, %error, "could not find a message at the broker");
            false
        }
    }
}
