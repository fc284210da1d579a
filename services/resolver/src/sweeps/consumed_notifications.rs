//! Notifications that every partition has read are deleted from the stream, which would otherwise fill up and refuse
//! new ones of every account. Some stay, for people to look at, while the stream is less than half full.

use std::time::Duration;

use messaging::{
    Bus, first_unread, is_same_moment, notification_stream_identity, purge_consumed, topology::PARTITIONS,
};
use runtime::{Context, sweep::Ticks};
use storage::Database;
use tracing::{debug, warn};

use crate::store::partitions::places_find;

/// How often it is looked at whether the stream fills: one question that the server answers from memory. Large messages can
/// fill in seconds what the other sweeps' interval leaves them.
const FILL_LOOK: Duration = Duration::from_secs(2);

/// Makes room as soon as the stream is half full.
pub async fn keep_room(context: Context) {
    let mut ticks = Ticks::every(FILL_LOOK, context.shutdown.token());
    while ticks.next().await {
        let (database, bus) = (&context.database, &context.bus);
        // Without an answer there is nothing to be done; the sweep says why.
        let filling = notification_stream_identity(bus).await;
        if !filling.is_ok_and(|stream| stream.is_half_full()) {
            continue;
        }
        if let Err(error) = consumed_notifications_purge(database, bus, 0).await {
            warn!(
                error = format!("{error:#}"),
                "could not purge a stream that is half full"
            );
        }
    }
}

/// Deletes what was read, but for the last `kept`, or all of it where the stream is half full; gives how many.
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
    let kept = if stream.is_half_full() { 0 } else { u64::from(kept) };
    let up_to = (unread - 1).saturating_sub(kept);
    if up_to <= stream.first_sequence {
        return Ok(0);
    }
    let purged = purge_consumed(bus, up_to).await?;
    debug!(up_to, purged, "purged consumed notifications");
    Ok(purged)
}
