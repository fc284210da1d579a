//! Notifications that every partition has read are deleted from the stream, which would otherwise fill up and refuse
//! new ones. Some stay, for people to look at.

use messaging::{Bus, first_unread, notification_stream_identity, purge_consumed, topology::PARTITIONS};
use storage::Database;
use tracing::debug;

use crate::{partitions::reading::is_same_moment, store::partitions::places_find};

/// Deletes what was read, but for the last `kept`; gives how many.
pub async fn consumed_notifications_purge(database: &Database, bus: &Bus, kept: u32) -> anyhow::Result<u64> {
    // Asked first: what comes after this is not read yet, and is above what we delete.
    let stream = notification_stream_identity(bus).await?;
    let places = places_find(database).await?;
    if places.len() != usize::from(PARTITIONS) {
        return Ok(0);
    }
    let mut unread = stream.last_sequence + 1;
    for (partition, place) in (0..PARTITIONS).zip(places) {
        // A place in an earlier stream says nothing about this one: nothing of the partition was read yet.
        let after = match place.stream_created {
            Some(created) if is_same_moment(created, stream.created) => place.sequence,
            Some(_) | None => 0,
        };
        // A quiet partition's place is far behind, though everything of it was read.
        if let Some(first) = first_unread(bus, partition, after).await? {
            unread = unread.min(first.sequence);
        }
    }
    let up_to = (unread - 1).saturating_sub(u64::from(kept));
    if up_to <= stream.first_sequence {
        return Ok(0);
    }
    let purged = purge_consumed(bus, up_to).await?;
    debug!(up_to, purged, "purged consumed notifications");
    Ok(purged)
}
