//! Reads one partition from its place, a batch after the other, until told to stop or replaced.
//!
//! A batch is what has arrived: under load it grows by itself while the one before is being written, and there is never
//! a wait for more. What fails for a reason that passes is tried again with growing pauses, and the place stands still
//! meanwhile: order is worth more than speed. What fails for what it holds, or because it is too much at once, is written in
//! halves, and a message that cannot be written alone is given up. One that is only slow is given up where others go through:
//! else it is the database that is slow, and has to be waited for.

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

/// How long a reader waits in silence before it looks by itself: a message whose ring was lost is missed for no longer than
/// this.
const QUIET: Duration = Duration::from_secs(1);
/// A batch that lost a race is begun again at once, this often; then it waits like after any failure.
const RACES_MAX: u32 = 5;

/// Transactions at once, over all partitions of a process. Those that wait get larger meanwhile: under load a few full
/// batches cost less than many small ones. More than one, so that a batch that waits for a lock holds up nobody else.
pub const WRITING_MAX: usize = 2;

/// What all partitions of a process share.
#[derive(Clone, Debug)]
pub struct ReaderContext {
    /// [`WRITING_MAX`] places.
    pub writing: Arc<Semaphore>,
    pub handler: NotificationHandler,
    /// Parts of batches that were written.
    pub committed: Arc<AtomicU64>,
    pub outbox: Outbox,
    pub metrics: Metrics,
    pub batch_messages_max: usize,
    pub retry_delay: Duration,
    pub retry_delay_max: Duration,
}

/// One partition in our hands.
pub struct Reading {
    pub context: ReaderContext,
    pub bus: Bus,
    pub topology: Topology,
    pub lease: Lease,
    pub stop: CancellationToken,
}

/// Why a reading ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Stopped,
    /// Another replica has the partition.
    Replaced,
    /// The database takes too long with everything: reading begins again at its place.
    Slow,
}

#[derive(Debug, thiserror::Error)]
enum ReadingError {
    #[error("the place of a partition could not be read")]
    PartitionOffset(#[from] StorageError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

impl Reading {
    /// Reads on, whatever happens to the broker, until the end.
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
                        error, "reading begins again at its place"
                    );
                }
            }
            if !waited(backoff.pause(), &self.stop).await {
                return End::Stopped;
            }
            reading = self.read_again().await;
            // One that went well for a while starts over with short pauses.
            if begun.elapsed() > self.context.retry_delay_max * 2 {
                backoff = self.context.backoff();
            }
        }
    }

    /// Whatever ended the reading, the stream itself may be gone: a broker that lost its store starts with none, until the
    /// operator has made them again.
    async fn read_again(&self) -> Result<End, ReadingError> {
        self.topology.ensure(&self.bus).await?;
        self.read().await
    }

    /// From the place on, for as long as nothing goes wrong.
    async fn read(&self) -> Result<End, ReadingError> {
        let Some(place) = place_find(&self.context.handler.database, &self.lease).await? else {
            return Ok(End::Replaced);
        };
        let stream_created = notification_stream_identity(&self.bus).await?.created;
        let mut reader = self.open(start(&place, stream_created)).await?;
        loop {
            let batch = tokio::select! {
                // A batch that was not handed out yet is read again from the place.
                batch = self.batch(&mut reader) => batch?,
                () = self.stop.cancelled() => return Ok(End::Stopped),
            };
            let Some((batch, writing)) = batch else { continue };
            if let Some(end) = self
                .context
                .take(&self.bus, &self.lease, stream_created, batch, writing, &self.stop)
                .await
            {
                return Ok(end);
            }
        }
    }

    /// What has arrived by the time that it may be written; none where nothing has for a while.
    async fn batch(
        &self,
        reader: &mut PartitionReader,
    ) -> Result<Option<(Vec<Incoming>, OwnedSemaphorePermit)>, ReadError> {
        reader.ready(QUIET).await;
        // Before the read, so that one request brings all that came meanwhile.
        let writing = Arc::clone(&self.context.writing).acquire_owned().await;
        let batch = reader.next_batch(self.context.batch_messages_max).await?;
        Ok((!batch.is_empty()).then(|| (batch, writing.expect("it is never closed"))))
    }

    async fn open(&self, start: messaging::StreamOffset) -> Result<PartitionReader, ReadError> {
        let partition = self.lease.partition;
        match PartitionReader::open(&self.bus, partition, start).await {
            Err(error @ ReadError::Rewritten { .. }) => {
                let error = error_chain(&error);
                // Reading again does no harm, since every notification has its id; skipping would.
                warn!(
                    partition,
                    error, "the stream lost messages; reading all that it holds now"
                );
                PartitionReader::open(&self.bus, partition, messaging::StreamOffset::default()).await
            }
            opened => opened,
        }
    }
}

/// Where to begin: behind the place, if it is a place in this stream.
pub fn start(place: &PartitionOffset, stream_created: OffsetDateTime) -> messaging::StreamOffset {
    match place.stream_created {
        Some(created) if is_same_moment(created, stream_created) => messaging::StreamOffset {
            sequence: place.sequence,
            published: place.published,
        },
        Some(_) | None => messaging::StreamOffset::default(),
    }
}

/// What came of a part of a batch.
enum Settled {
    Committed,
    Ended(End),
    /// What it holds is to blame, or how much of it.
    Refused(StorageError),
}

impl ReaderContext {
    /// Takes a batch in, for good. Some: reading ends, and what is not taken in stays behind the place.
    pub async fn take(
        &self,
        bus: &Bus,
        lease: &Lease,
        stream_created: OffsetDateTime,
        batch: Vec<Incoming>,
        writing: OwnedSemaphorePermit,
        stop: &CancellationToken,
    ) -> Option<End> {
        self.handler.shutdown.crash_point("resolver.batch_read").await;
        let root = bus.root();
        let (batch, _spans): (Vec<Received>, Vec<Span>) = batch
            .into_iter()
            .map(|incoming| {
                let subject = root.notification_published(&incoming.subject);
                let is_signed = bus.is_signed(&subject, &incoming.headers, &incoming.payload);
                spans::begin(Received::read(root, stream_created, incoming, is_signed))
            })
            .unzip();
        let mut write = Write {
            writing: Some(writing),
            context: self,
            bus,
            lease,
            stream_created,
            stop,
        };
        write.in_parts(&batch).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(self.retry_delay, self.retry_delay_max)
    }
}

/// What is tried with a message, from the best to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Treatment {
    Handle,
    Bury,
    Skip,
}

/// So often one message that takes too long is tried alone before it is asked whether others go through.
const ALONE_TRIES_MAX: u32 = 3;

impl Treatment {
    /// What is tried after this was refused for one message, `tries` times so far; none when nothing is left. `is_slow`: it
    /// took too much, and no value in it is to blame. What is too slow today may be quick in a moment; and where a dead letter is too much as well, it is not the message.
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
    /// A place among those who write, until something goes wrong: whoever waits to try again is in nobody's way.
    writing: Option<OwnedSemaphorePermit>,
    context: &'a ReaderContext,
    bus: &'a Bus,
    lease: &'a Lease,
    stream_created: OffsetDateTime,
    stop: &'a CancellationToken,
}

impl Write<'_> {
    async fn in_parts(&mut self, batch: &[Received]) -> Option<End> {
        let context = self.context;
        let mut parts = Parts::of(batch);
        while let Some(part) = parts.next() {
            let hurried = parts.hurries(part).then(|| context.handler.hurried());
            let handler = hurried.as_ref().unwrap_or(&context.handler);
            match self.settle(handler, part, Treatment::Handle).await {
                Settled::Committed => {}
                Settled::Ended(end) => return Some(end),
                Settled::Refused(cause) => {
                    // A statement may have taken all of its time: nobody else waits for the rest.
                    self.writing = None;
                    if self.stop.is_cancelled() {
                        return Some(End::Stopped);
                    }
                    if parts.halve(part) {
                        let error = error_chain(&cause);
                        warn!(
                            partition = self.lease.partition,
                            messages = part.len(),
                            error,
                            "the database refused a batch; writing it in halves"
                        );
                    } else if let Some(end) = self.alone(&part[0], behind(batch, &part[0]), cause).await {
                        return Some(end);
                    }
                }
            }
        }
        None
    }

    /// One message that was refused by itself, to its end; `behind` are others that wait for it.
    async fn alone(&mut self, received: &Received, behind: &[Received], mut cause: StorageError) -> Option<End> {
        let (mut tried, mut tries, mut backoff) = (Treatment::Handle, 1, self.context.backoff());
        let committed = self.context.committed.load(Ordering::Relaxed);
        loop {
            let is_slow = cause.is_too_much() && !cause.blames_values();
            let next = tried.next(is_slow, tries);
            let error = error_chain(&cause);
            error!(
                partition = self.lease.partition,
                sequence = received.sequence,
                subject = received.subject,
                notification_id = %received.id,
                ?tried,
                tries,
                ?next,
                error,
                "the database refused a notification"
            );
            let treatment = next?;
            if is_slow && treatment == Treatment::Bury && !self.others_go_through(committed, received, behind).await {
                return Some(End::Slow);
            }
            if treatment == Treatment::Handle && !waited(backoff.pause(), self.stop).await {
                return Some(End::Stopped);
            }
            tries = if treatment == tried { tries + 1 } else { 1 };
            tried = treatment;
            let context = self.context;
            match self
                .settle(&context.handler, std::slice::from_ref(received), treatment)
                .await
            {
                Settled::Committed => return None,
                Settled::Ended(end) => return Some(end),
                Settled::Refused(error) => cause = error,
            }
        }
    }

    /// Another part was written by anybody here since so many were; or one of those behind would be, of another account
    /// if there is one. Where neither is, none is known to wait, or the database is slow.
    async fn others_go_through(&self, committed: u64, received: &Received, behind: &[Received]) -> bool {
        if self.context.committed.load(Ordering::Relaxed) > committed {
            return true;
        }
        let of_another = behind.iter().find(|other| other.account != received.account);
        match of_another.or(behind.first()) {
            Some(other) => {
                let (other, now) = (std::slice::from_ref(other), OffsetDateTime::now_utc());
                self.context.handler.rehearse(other, now).await.is_ok()
            }
            None => false,
        }
    }

    /// Tries until it is committed, or cannot be.
    async fn settle(&mut self, handler: &NotificationHandler, batch: &[Received], treatment: Treatment) -> Settled {
        let Some(last) = batch.last() else {
            return Settled::Committed;
        };
        let to = PartitionOffset {
            sequence: last.sequence,
            published: Some(last.published),
            stream_created: Some(self.stream_created),
        };
        let (begun, mut races, mut backoff) = (Instant::now(), 0, self.context.backoff());
        loop {
            let now = OffsetDateTime::now_utc();
            // Not in a select: a transaction is never dropped half-way.
            let handled = match treatment {
                Treatment::Handle => handler.handle(self.lease, &to, batch, now).await,
                Treatment::Bury => handler.bury(self.lease, &to, last, now).await,
                Treatment::Skip => handler.skip(self.lease, &to, last).await,
            };
            match handled {
                Ok(Handled::Committed(committed)) => {
                    self.context.committed.fetch_add(1, Ordering::Relaxed);
                    self.context.metrics.committed(batch.len(), begun.elapsed(), &committed);
                    self.publish(committed.outbox, &committed.wakes).await;
                    handler.shutdown.crash_point("resolver.batch_published").await;
                    return Settled::Committed;
                }
                Ok(Handled::Stale) => {
                    self.context.metrics.stale();
                    return Settled::Ended(End::Replaced);
                }
                Ok(Handled::Raced) => {
                    races += 1;
                    if races <= RACES_MAX {
                        continue;
                    }
                    warn!(partition = self.lease.partition, races, "a batch keeps losing races");
                }
                Err(error) if error.blames_batch() => return Settled::Refused(error),
                Err(error) => {
                    let error = error_chain(&error);
                    warn!(
                        partition = self.lease.partition,
                        messages = batch.len(),
                        error,
                        "a batch could not be written yet"
                    );
                }
            }
            self.writing = None;
            if !waited(backoff.pause(), self.stop).await {
                return Settled::Ended(End::Stopped);
            }
        }
    }

    /// Outbox first: handing over costs nothing. A wake-up that is lost is found by delivery's sweep.
    async fn publish(&self, outbox: Vec<storage::outbox::OutboxRow>, wakes: &[contracts::Outgoing]) {
        self.context.outbox.publish_soon(outbox);
        let failed: Vec<_> = self
            .bus
            .publish_all(wakes)
            .await
            .into_iter()
            .filter_map(Result::err)
            .collect();
        if let Some(first) = failed.into_iter().next() {
            let error = error_chain(&first);
            info!(
                partition = self.lease.partition,
                error, "wake-ups were not published; delivery will look by itself"
            );
        }
    }
}

/// What comes behind one message of a batch.
fn behind<'b>(batch: &'b [Received], one: &Received) -> &'b [Received] {
    &batch[batch.partition_point(|other| other.sequence <= one.sequence)..]
}

/// `false`: told to stop meanwhile.
async fn waited(pause: Duration, stop: &CancellationToken) -> bool {
    stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow_is_tried_again_and_what_is_refused_is_given_up() {
        let check = |tried: Treatment, is_slow: bool, tries: u32, next: Option<Treatment>| {
            assert_eq!(tried.next(is_slow, tries), next, "{tried:?} {is_slow} {tries}");
        };
        check(Treatment::Handle, false, 1, Some(Treatment::Bury));
        check(Treatment::Bury, false, 1, Some(Treatment::Skip));
        check(Treatment::Skip, false, 1, None);
        check(Treatment::Handle, true, 1, Some(Treatment::Handle));
        check(Treatment::Handle, true, ALONE_TRIES_MAX, Some(Treatment::Bury));
        // Nothing is thrown away because the database is slow with everything.
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
