//! How long the oldest unread notification has waited: the lag of the resolver's consumers, for a gauge and for the
//! doctor. Writes nothing.

use messaging::{
    Bus, ReadError, StreamIdentity, Unread, first_unread, notification_stream_identity, topology::PARTITIONS,
};
use opentelemetry::{global, metrics::Gauge};
use runtime::{Context, sweep::Ticks};
use storage::Database;
use time::OffsetDateTime;
use tracing::debug;

use crate::{
    partitions::reading::start,
    store::partitions::{PartitionOffset, places_find},
};

/// When the oldest unread notification was published; none when all are read. A few requests to the broker, whatever
/// the backlog.
pub async fn unread_since(database: &Database, bus: &Bus) -> anyhow::Result<Option<OffsetDateTime>> {
    let stream = notification_stream_identity(bus).await?;
    let unread = first_unread_each(bus, &stream, &places_find(database).await?).await?;
    Ok(unread.into_iter().map(|first| first.published).min())
}

/// The first unread notification of every partition that has one, given all partitions' offsets.
pub(super) async fn first_unread_each(
    bus: &Bus,
    stream: &StreamIdentity,
    places: &[PartitionOffset],
) -> Result<Vec<Unread>, ReadError> {
    let mut unread = Vec::new();
    for (partition, place) in (0..PARTITIONS).zip(places) {
        // An offset in an earlier stream does not apply to this one: nothing of the partition was read yet.
        let after = start(place, stream.created).sequence;
        // A partition that was read to the end of the stream needs no request.
        if after < stream.last_sequence {
            unread.extend(first_unread(bus, partition, after).await?);
        }
    }
    Ok(unread)
}

/// Updates the gauge, in every replica.
pub async fn watch_unread(context: Context) {
    let gauge: Gauge<f64> = global::meter("resolver")
        .f64_gauge("signalbox.resolver.unread_age")
        .with_unit("s")
        .with_description("How long the oldest unread notification has waited on the broker")
        .build();
    let every = context.settings.telemetry.metrics_interval_ms.duration();
    let mut ticks = Ticks::every(every, context.shutdown.token());
    while ticks.next().await {
        match unread_since(&context.database, &context.bus).await {
            Ok(since) => {
                let age = since.map_or(0.0, |since| (OffsetDateTime::now_utc() - since).as_seconds_f64());
                gauge.record(age.max(0.0), &[]);
            }
            Err(error) => debug!(error = format!("{error:#}"), "could not read the unread age"),
        }
    }
}
