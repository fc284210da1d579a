//! Reads one partition from its stored offset, batch after batch, until stopped or replaced.
//!
//! A batch is the messages that have arrived: under load it grows while the previous batch is written, and the reader
//! never waits for more. A transient failure is retried with growing pauses, and the offset does not move meanwhile:
//! order is worth more than speed. A batch that fails because of its content or its size is written in halves. A single
//! message that cannot be written is dead-lettered. A single message that is only slow is dead-lettered if other
//! messages succeed; otherwise the database is slow, and the reader waits for it.

use domain::{Backoff, error_chain};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use messaging::{
    Bus, Incoming, PartitionReader, ReadError, Topology, TopologyError, is_same_moment, notification_stream_identity,
};
use runtime::Outbox;
use storage::{Parts, StorageError};
use time::OffsetDateTime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{Span, error, info, warn};

use crate::{
    handlers::notification::{Handled, NotificationHandler},
    intake::received::Received,
    metrics::Metrics,
    spans,
    store::partitions::{Lease, PartitionOffset, place_find},
};

/// How long a reader waits without a notification before it polls. A message whose notification was lost is delayed by
/// at most this.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A batch that lost a race is retried at once, this many times; then it waits like after any failure.
const RACES_MAX: u32 = 5;

/// Transactions at once, over all partitions of a process. Waiting batches grow meanwhile: under load a few full
/// batches cost less than many small ones. A batch with a permit waits only briefly for a lock, so that it does not
/// block the others.
pub const WRITING_MAX: usize = 2;

/// State that all partitions of a process share.
#[derive(Clone, Debug)]
pub struct ReaderContext {
    /// [`WRITING_MAX`] permits.
    pub writing: Arc<Semaphore>,
    pub handler: NotificationHandler,
    /// Number of committed batches and parts of batches.
    pub committed: Arc<AtomicU64>,
    pub outbox: Outbox,
    pub metrics: Metrics,
    pub batch_messages_max: usize,
    pub retry_delay: Duration,
    pub retry_delay_max: Duration,
}

/// The reader of one leased partition.
pub struct Reading {
    pub context: ReaderContext,
    pub bus: Bus,
    pub topology: Topology,
    pub lease: Lease,
    pub stop: CancellationToken,
}

/// Why a reader ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Stopped,
    /// Another replica holds the partition.
    Replaced,
    /// The database is slow for all messages: reading restarts at the stored offset.
    Slow,
}

#[derive(Debug, thiserror::Error)]
enum ReadingError {
    #[error("reading a partition's offset")]
    Offset(#[from] StorageError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

impl Reading {
    /// Reads until stopped or replaced, and restarts after errors of the broker.
    pub async fn run(self) -> End {
        let mut backoff = self.context.backoff();
        let mut reading = self.read().await;
        loop {
            let begun = Instant::now();
            match reading {
                Ok(End::Slow) => {}
                Ok(end @ (End::Stopped | End::Replaced)) => return end,
                Err(error) => {
                    let error = error_chain(&error);
                    info!(
                        partition = self.lease.partition,
                        error, "restarting partition reader at stored offset"
                    );
                }
            }
            if !waited(backoff.pause(), &self.stop).await {
                return End::Stopped;
            }
            reading = self.read_again().await;
            // A reader that ran well for a while restarts with short pauses.
            if begun.elapsed() > self.context.retry_delay_max * 2 {
                backoff = self.context.backoff();
            }
        }
    }

    /// Restarts the reader. The stream itself may be missing: a broker that lost its store has none until the operator
    /// has created them again.
    async fn read_again(&self) -> Result<End, ReadingError> {
        self.topology.ensure(&self.bus).await?;
        self.read().await
    }

    /// Reads from the offset until an error.
    async fn read(&self) -> Result<End, ReadingError> {
        let Some(place) = place_find(&self.context.handler.database, &self.lease).await? else {
            return Ok(End::Replaced);
        };
        let stream_created = notification_stream_identity(&self.bus).await?.created;
        let mut reader = self.open(start(&place, stream_created)).await?;
        loop {
            let batch = tokio::select! {
                // A batch that was not returned yet is read again from the offset.
                batch = self.batch(&mut reader) => batch?,
                () = self.stop.cancelled() => return Ok(End::Stopped),
            };
            let Some((batch, writing)) = batch else { continue };
            if let Some(end) = self.take(stream_created, batch, writing).await {
                return Ok(end);
            }
        }
    }

    /// The messages that have arrived when a write permit is free; none after a while without messages.
    async fn batch(
        &self,
        reader: &mut PartitionReader,
    ) -> Result<Option<(Vec<Incoming>, OwnedSemaphorePermit)>, ReadError> {
        reader.ready(POLL_INTERVAL).await;
        // Before the read, so that one request returns all messages that arrived meanwhile.
        let writing = Arc::clone(&self.context.writing).acquire_owned().await;
        let batch = reader.next_batch(self.context.batch_messages_max).await?;
        Ok((!batch.is_empty()).then(|| (batch, writing.expect("the semaphore is never closed"))))
    }

    async fn open(&self, start: messaging::StreamOffset) -> Result<PartitionReader, ReadError> {
        let partition = self.lease.partition;
        match PartitionReader::open(&self.bus, partition, start).await {
            Err(error @ ReadError::Rewritten { .. }) => {
                let error = error_chain(&error);
                // Reading again is harmless, since every notification has its id; skipping would lose messages.
                warn!(partition, error, "the stream lost messages; reading it from the start");
                PartitionReader::open(&self.bus, partition, messaging::StreamOffset::default()).await
            }
            opened => opened,
        }
    }

    /// Writes a batch, retrying. Some: the reader ends, and the rest of the batch stays after the offset.
    async fn take(
        &self,
        stream_created: OffsetDateTime,
        batch: Vec<Incoming>,
        writing: OwnedSemaphorePermit,
    ) -> Option<End> {
        self.context.handler.shutdown.crash_point("resolver.batch_read").await;
        let root = self.bus.root();
        let (batch, _spans): (Vec<Received>, Vec<Span>) = batch
            .into_iter()
            .map(|incoming| {
                let subject = root.notification_published(&incoming.subject);
                let is_signed = self.bus.is_signed(&subject, &incoming.headers, &incoming.payload);
                spans::begin(Received::read(root, stream_created, incoming, is_signed))
            })
            .unzip();
        let mut write = Write {
            reading: self,
            writing: Some(writing),
            stream_created,
        };
        write.in_parts(&batch).await
    }
}

/// The offset to start at: after the stored one, if that belongs to this stream.
pub fn start(place: &PartitionOffset, stream_created: OffsetDateTime) -> messaging::StreamOffset {
    match place.stream_created {
        Some(created) if is_same_moment(created, stream_created) => messaging::StreamOffset {
            sequence: place.sequence,
            published: place.published,
        },
        Some(_) | None => messaging::StreamOffset::default(),
    }
}

/// The result of one part of a batch.
enum Settled {
    Committed,
    Ended(End),
    /// The content or the size of the part is the cause.
    Refused(StorageError),
}

impl ReaderContext {
    fn backoff(&self) -> Backoff {
        Backoff::new(self.retry_delay, self.retry_delay_max)
    }
}

/// How a message is written, from the best treatment to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Treatment {
    Handle,
    Bury,
    Skip,
}

/// A slow message is retried alone this many times before the reader checks whether other messages succeed.
const ALONE_TRIES_MAX: u32 = 3;

impl Treatment {
    /// The treatment after this one failed for one message `tries` times; none when nothing is left. `is_slow`: the
    /// statement took too long or too much, and no value is the cause. A slow message may be quick on a retry. Where
    /// its dead letter is slow as well, the message is not the cause.
    fn next(self, is_slow: bool, tries: u32) -> Option<Treatment> {
        match self {
            Treatment::Handle if is_slow && tries < ALONE_TRIES_MAX => Some(Treatment::Handle),
            Treatment::Handle => Some(Treatment::Bury),
            Treatment::Bury | Treatment::Skip if is_slow => Some(Treatment::Handle),
            Treatment::Bury => Some(Treatment::Skip),
            Treatment::Skip => None,
        }
    }
}

struct Write<'a> {
    /// A write permit, released on the first failure: a batch that waits for its retry blocks no other.
    writing: Option<OwnedSemaphorePermit>,
    reading: &'a Reading,
    stream_created: OffsetDateTime,
}

impl Write<'_> {
    async fn in_parts(&mut self, batch: &[Received]) -> Option<End> {
        let context = &self.reading.context;
        let mut parts = Parts::of(batch);
        while let Some(part) = parts.next() {
            let hurried = parts.hurries(part).then(|| context.handler.hurried());
            let handler = hurried.as_ref().unwrap_or(&context.handler);
            match self.settle(handler, part, Treatment::Handle).await {
                Settled::Committed => {}
                Settled::Ended(end) => return Some(end),
                Settled::Refused(cause) => {
                    // A statement may have used its full timeout: other batches do not wait for the rest.
                    self.writing = None;
                    if self.reading.stop.is_cancelled() {
                        return Some(End::Stopped);
                    }
                    if parts.halve(part) {
                        let error = error_chain(&cause);
                        warn!(
                            partition = self.reading.lease.partition,
                            messages = part.len(),
                            error,
                            "batch failed; retrying it in halves"
                        );
                    } else if let Some(end) = self.retry_alone(&part[0], behind(batch, &part[0]), cause).await {
                        return Some(end);
                    }
                }
            }
        }
        None
    }

    /// Handles one message that failed alone; `behind` are the messages after it.
    async fn retry_alone(&mut self, received: &Received, behind: &[Received], mut cause: StorageError) -> Option<End> {
        let (mut tried, mut tries, mut backoff) = (Treatment::Handle, 1, self.reading.context.backoff());
        let committed = self.reading.context.committed.load(Ordering::Relaxed);
        loop {
            let is_slow = cause.is_too_much() && !cause.blames_values();
            let next = tried.next(is_slow, tries);
            let error = error_chain(&cause);
            error!(
                partition = self.reading.lease.partition,
                sequence = received.sequence,
                subject = received.subject,
                notification_id = %received.id,
                ?tried,
                tries,
                ?next,
                error,
                "writing a notification failed"
            );
            let treatment = next?;
            if is_slow && treatment == Treatment::Bury && !self.others_go_through(committed, received, behind).await {
                return Some(End::Slow);
            }
            if treatment == Treatment::Handle && !waited(backoff.pause(), &self.reading.stop).await {
                return Some(End::Stopped);
            }
            tries = if treatment == tried { tries + 1 } else { 1 };
            tried = treatment;
            let (handler, alone) = (&self.reading.context.handler, std::slice::from_ref(received));
            match self.settle(handler, alone, treatment).await {
                Settled::Committed => return None,
                Settled::Ended(end) => return Some(end),
                Settled::Refused(error) => cause = error,
            }
        }
    }

    /// Whether other messages succeed: another part was committed in this process since `committed`, or a rehearsal of
    /// one message behind succeeds, preferably of another account. False when no other message waits, or when the
    /// database is slow.
    async fn others_go_through(&self, committed: u64, received: &Received, behind: &[Received]) -> bool {
        if self.reading.context.committed.load(Ordering::Relaxed) > committed {
            return true;
        }
        let of_another = behind.iter().find(|other| other.account != received.account);
        match of_another.or(behind.first()) {
            Some(other) => {
                let (other, now) = (std::slice::from_ref(other), OffsetDateTime::now_utc());
                self.reading.context.handler.rehearse(other, now).await.is_ok()
            }
            None => false,
        }
    }

    /// Retries until the part is committed, or cannot be.
    async fn settle(&mut self, handler: &NotificationHandler, batch: &[Received], treatment: Treatment) -> Settled {
        let Some(last) = batch.last() else {
            return Settled::Committed;
        };
        let to = PartitionOffset {
            sequence: last.sequence,
            published: Some(last.published),
            stream_created: Some(self.stream_created),
        };
        let Reading {
            context, lease, stop, ..
        } = self.reading;
        let (begun, mut races, mut backoff) = (Instant::now(), 0, context.backoff());
        let with_permit = handler.with_short_lock_timeout();
        loop {
            let now = OffsetDateTime::now_utc();
            let handler = match self.writing {
                Some(_) => &with_permit,
                None => handler,
            };
            // Not in a select: a transaction is never dropped half-way.
            let handled = match treatment {
                Treatment::Handle => handler.handle(lease, &to, batch, now).await,
                Treatment::Bury => handler.bury(lease, &to, last, now).await,
                Treatment::Skip => handler.skip(lease, &to, last).await,
            };
            match handled {
                Ok(Handled::Committed(committed)) => {
                    context.committed.fetch_add(1, Ordering::Relaxed);
                    context.metrics.committed(batch.len(), begun.elapsed(), &committed);
                    self.publish(committed.outbox, &committed.wakes).await;
                    handler.shutdown.crash_point("resolver.batch_published").await;
                    return Settled::Committed;
                }
                Ok(Handled::Stale) => {
                    context.metrics.stale();
                    return Settled::Ended(End::Replaced);
                }
                Ok(Handled::Raced) => {
                    races += 1;
                    if races <= RACES_MAX {
                        continue;
                    }
                    warn!(
                        partition = lease.partition,
                        races, "batch keeps losing races; will retry"
                    );
                }
                Err(error) if error.blames_batch() => return Settled::Refused(error),
                Err(error) if error.waits_for_lock() && self.writing.is_some() => {
                    info!(
                        partition = lease.partition,
                        messages = batch.len(),
                        "batch waits for a lock; will retry beside the other partitions' batches"
                    );
                }
                Err(error) => {
                    let error = error_chain(&error);
                    warn!(
                        partition = lease.partition,
                        messages = batch.len(),
                        error,
                        "batch failed; will retry"
                    );
                }
            }
            self.writing = None;
            if !waited(backoff.pause(), stop).await {
                return Settled::Ended(End::Stopped);
            }
        }
    }

    /// Hands over the outbox rows first, which costs nothing. Delivery's sweep finds a session whose wake-up was lost.
    async fn publish(&self, outbox: Vec<storage::outbox::OutboxRow>, wakes: &[contracts::Outgoing]) {
        self.reading.context.outbox.publish_soon(outbox);
        let published = self.reading.bus.publish_all(wakes).await;
        if let Some(first) = published.iter().find_map(|result| result.as_ref().err()) {
            let error = error_chain(first);
            info!(
                partition = self.reading.lease.partition,
                error, "could not publish wake-ups; delivery's sweep will find the sessions"
            );
        }
    }
}

/// The messages after one message of a batch.
fn behind<'b>(batch: &'b [Received], one: &Received) -> &'b [Received] {
    &batch[batch.partition_point(|other| other.sequence <= one.sequence)..]
}

/// Waits. `false`: stopped meanwhile.
async fn waited(pause: Duration, stop: &CancellationToken) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_messages_are_retried_and_rejected_ones_are_buried() {
        let check = |tried: Treatment, is_slow: bool, tries: u32, next: Option<Treatment>| {
            assert_eq!(tried.next(is_slow, tries), next, "{tried:?} {is_slow} {tries}");
        };
        check(Treatment::Handle, false, 1, Some(Treatment::Bury));
        check(Treatment::Bury, false, 1, Some(Treatment::Skip));
        check(Treatment::Skip, false, 1, None);
        check(Treatment::Handle, true, 1, Some(Treatment::Handle));
        check(Treatment::Handle, true, ALONE_TRIES_MAX, Some(Treatment::Bury));
        // No message is skipped while the database is slow for all.
        check(Treatment::Bury, true, 1, Some(Treatment::Handle));
        check(Treatment::Skip, true, 1, Some(Treatment::Handle));
    }

    #[test]
    fn a_place_counts_only_in_its_own_stream() {
        let created = OffsetDateTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_891);
        let place = |stream_created| PartitionOffset {
            sequence: 7,
            published: Some(created),
            stream_created,
        };
        let kept = created - Duration::from_nanos(891);
        assert_eq!(start(&place(Some(kept)), created).sequence, 7);
        assert_eq!(start(&place(Some(kept)), created).published, Some(created));
        let other = created + Duration::from_millis(1);
        assert_eq!(start(&place(Some(other)), created), messaging::StreamOffset::default());
        assert_eq!(start(&place(None), created), messaging::StreamOffset::default());
    }
}
