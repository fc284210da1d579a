//! Deletes notifications that every partition has read from the stream, which would otherwise fill up and refuse new
//! ones of every account. Some stay for people to inspect while the stream is less than half full.

use std::time::Duration;

use messaging::{Bus, Unread, notification_stream_identity, purge_consumed, topology::PARTITIONS};
use runtime::{Context, sweep::Ticks};
use storage::Database;
use tracing::{debug, warn};

use super::unread_notifications::first_unread_each;
use crate::store::partitions::places_find;

/// How often the stream's size is checked: one request, answered from the server's memory. Large messages can fill the
/// stream in seconds, long before the other sweeps' interval.
const FILL_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Purges as soon as the stream is half full.
pub async fn keep_room(context: Context) {
    let mut ticks = Ticks::every(FILL_CHECK_INTERVAL, context.shutdown.token());
    while ticks.next().await {
        let (database, bus) = (&context.database, &context.bus);
        // On an error there is nothing to do; the sweep logs the cause.
        let filling = notification_stream_identity(bus).await;
        if !filling.is_ok_and(|stream| stream.is_half_full()) {
            continue;
        }
        if let Err(error) = consumed_notifications_purge(database, bus, 0).await {
            warn!(
                error = format!("{error:#}"),
                "could not purge the half-full notification stream"
            );
        }
    }
}

/// Deletes read messages except the last `kept`, or all of them where the stream is half full; returns how many.
pub async fn consumed_notifications_purge(database: &Database, bus: &Bus, kept: u32) -> anyhow::Result<u64> {
    // Read first: later messages are unread and have higher sequences than the deleted ones.
    let stream = notification_stream_identity(bus).await?;
    let places = places_find(database).await?;
    if places.len() != usize::from(PARTITIONS) {
        return Ok(0);
    }
    // A quiet partition's offset is far behind, though all its messages were read.
    let unread = first_unread_each(bus, &stream, &places).await?;
    let kept = if stream.is_half_full() { 0 } else { u64::from(kept) };
    let up_to = last_consumed(stream.last_sequence, &unread).saturating_sub(kept);
    if up_to <= stream.first_sequence {
        return Ok(0);
    }
    let purged = purge_consumed(bus, up_to).await?;
    debug!(up_to, purged, "purged consumed notifications");
    Ok(purged)
}

/// The last message that every partition has read, given the first unread one of each. Never later than `end`, the end
/// of the stream when the offsets were read: a partition that had read up to it was not searched, and may have got
/// messages since.
fn last_consumed(end: u64, unread: &[Unread]) -> u64 {
    let unread = unread.iter().map(|first| first.sequence - 1);
    unread.fold(end, u64::min)
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn nothing_that_came_after_the_offsets_were_read_counts_as_consumed() {
        let unread = |sequence| Unread {
            sequence,
            published: OffsetDateTime::UNIX_EPOCH,
        };
        assert_eq!(last_consumed(50, &[]), 50);
        assert_eq!(last_consumed(50, &[unread(41), unread(47)]), 40);
        // Messages 51 to 1550 came to a partition that had read everything, 1551 to another.
        assert_eq!(last_consumed(50, &[unread(1551)]), 50);
        assert_eq!(last_consumed(50, &[unread(1551), unread(12)]), 11);
    }
}
