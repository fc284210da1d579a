//! Reading one partition of the notifications in order, from a place that the caller keeps.
//!
//! The place lies in Postgres and moves in the transaction that writes what was read. So there are no acknowledgements
//! here: the consumer at the server is a throw-away that starts behind the place and sends everything once. When
//! anything is odd (a gap, a silence, a new connection), the reader reports an error and the caller opens a new one at
//! its place; rereading is free of harm, skipping is not.

use std::time::Duration;

use async_nats::jetstream::{
    consumer::{AckPolicy, DeliverPolicy, pull},
    stream::LastRawMessageErrorKind,
};
use futures::{FutureExt, StreamExt};
use time::OffsetDateTime;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::{Bus, Incoming, ReadError, Stream, topology};

/// How far a partition has been read.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Place {
    /// Of the last message read; 0 before the first.
    pub sequence: u64,
    /// When that message was published ([`Incoming::published`]). With it, a stream whose tail was lost and written anew
    /// under the same numbers is told from the one that was read; without it, only a stream that is now too short is.
    pub published: Option<OffsetDateTime>,
}

/// Which stream of notifications this is. A stream that was deleted and made again has another `created`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamIdentity {
    pub created: OffsetDateTime,
    /// Of the oldest message still there; one past the last when there is none.
    pub first_sequence: u64,
    pub last_sequence: u64,
    pub bytes: u64,
    /// None: the operator has set no limit.
    pub bytes_max: Option<u64>,
}

impl StreamIdentity {
    /// Full, it refuses every notification of every account.
    pub fn is_half_full(&self) -> bool {
        self.bytes_max.is_some_and(|max| self.bytes > max / 2)
    }
}

pub async fn notification_stream_identity(bus: &Bus) -> Result<StreamIdentity, ReadError> {
    let name = Stream::Notification.name(bus.root());
    let stream = bus
        .jetstream()
        .get_stream(name)
        .await
        .map_err(|error| ReadError::Lookup(error.into()))?;
    let info = stream.cached_info();
    Ok(StreamIdentity {
        created: info.created,
        first_sequence: info.state.first_sequence,
        last_sequence: info.state.last_sequence,
        bytes: info.state.bytes,
        bytes_max: u64::try_from(info.config.max_bytes).ok(),
    })
}

/// Deletes notifications before `up_to_sequence`, which must not be above the place of any partition. The message at
/// that sequence stays: it proves at the next start that the stream is still the one that was read.
pub async fn purge_consumed(bus: &Bus, up_to_sequence: u64) -> Result<u64, ReadError> {
    if up_to_sequence == 0 {
        return Ok(0); // To the server, 0 means everything.
    }
    let failed = |source| ReadError::Purge { up_to_sequence, source };
    let name = Stream::Notification.name(bus.root());
    let stream = bus
        .jetstream()
        .get_stream_no_info(name)
        .await
        .map_err(|error| failed(error.into()))?;
    let purged = stream
        .purge()
        .sequence(up_to_sequence)
        .await
        .map_err(|error| failed(error.into()))?;
    Ok(purged.purged)
}

/// A message that was not read yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unread {
    pub sequence: u64,
    pub published: OffsetDateTime,
}

/// The first message of a partition behind `after`, as the server has it now; none when there is none.
/// Another partition's place says nothing about this one: a quiet partition stays behind for ever.
pub async fn first_unread(bus: &Bus, partition: u16, after: u64) -> Result<Option<Unread>, ReadError> {
    let name = Stream::Notification.name(bus.root());
    let stream = bus
        .jetstream()
        .get_stream_no_info(name)
        .await
        .map_err(|error| ReadError::Lookup(error.into()))?;
    let filter = topology::partition_filter(bus.root(), partition);
    match stream.get_first_raw_message_by_subject(filter, after + 1).await {
        Ok(message) => Ok(Some(Unread {
            sequence: message.sequence,
            published: message.time,
        })),
        Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => Ok(None),
        Err(error) => Err(ReadError::Lookup(error.into())),
    }
}

/// A pull request lives this long at the server; then the client sends the next.
const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// Two of these missed, and the reader counts as lost.
const PULL_HEARTBEAT: Duration = Duration::from_secs(2);
/// The server removes the consumer when nobody asked for messages for this long.
const INACTIVE: Duration = Duration::from_secs(30);
/// Asked for at once; the client asks for more when half have come.
const PULL_MESSAGES: usize = 512;

pub struct PartitionReader {
    bus: Bus,
    partition: u16,
    consumer: String,
    messages: pull::Stream,
    /// Consumer sequence of the next delivery.
    expected: u64,
    connections: u64,
}

impl PartitionReader {
    /// Starts behind `after`. `label` names the reader in the server's listings (a replica and its fence, say); letters,
    /// digits and `-` of it are used.
    pub async fn open(bus: &Bus, partition: u16, after: Place, label: &str) -> Result<PartitionReader, ReadError> {
        // Taken first: a connection lost while opening must show.
        let connections = bus.connections_made();
        check_place(bus, partition, after).await?;
        let failed = |source| ReadError::Open { partition, source };
        let label: String = label
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
            .take(64)
            .collect();
        // Unique: a consumer of the same name would be another's, with its own count of deliveries.
        let consumer = format!("partition_{partition}_{label}_{}", Uuid::now_v7().simple());
        let config = pull::Config {
            name: Some(consumer.clone()),
            filter_subject: topology::partition_filter(bus.root(), partition),
            deliver_policy: match after.sequence {
                0 => DeliverPolicy::All,
                sequence => DeliverPolicy::ByStartSequence {
                    start_sequence: sequence + 1,
                },
            },
            ack_policy: AckPolicy::None,
            inactive_threshold: INACTIVE,
            memory_storage: true,
            num_replicas: 1,
            ..pull::Config::default()
        };
        let stream = Stream::Notification.name(bus.root());
        let created = bus.jetstream().create_consumer_on_stream(config, stream).await;
        let messages = created
            .map_err(|error| failed(error.into()))?
            .stream()
            .max_messages_per_batch(PULL_MESSAGES)
            .expires(PULL_EXPIRES)
            .heartbeat(PULL_HEARTBEAT)
            .messages()
            .await
            .map_err(|error| failed(error.into()))?;
        Ok(PartitionReader {
            bus: bus.clone(),
            partition,
            consumer,
            messages,
            expected: 1,
            connections,
        })
    }

    /// What has arrived, as soon as something has, at most `max`; nothing when `wait` passes in silence, so that the
    /// caller can see to its lease.
    ///
    /// Dropping this future loses nothing that a later call would not notice. After an error, the reader is spent.
    pub async fn next_batch(&mut self, max: usize, wait: Duration) -> Result<Vec<Incoming>, ReadError> {
        let mut batch = Vec::new();
        match timeout_at(Instant::now() + wait, self.messages.next()).await {
            Err(_quiet) => {
                self.check_connection()?;
                return Ok(batch);
            }
            Ok(item) => batch.push(self.accept(item)?),
        }
        self.fill_up(&mut batch, max)?;
        // Messages that came over an old connection are as good as any as long as their numbers have no gap.
        Ok(batch)
    }

    /// Adds what has arrived since to a batch, which holds at most `max` then. After an error, the reader is spent, and the
    /// batch is read again by the next one.
    pub fn fill_up(&mut self, batch: &mut Vec<Incoming>, max: usize) -> Result<(), ReadError> {
        while batch.len() < max {
            match self.messages.next().now_or_never() {
                Some(item) => batch.push(self.accept(item)?),
                None => break,
            }
        }
        Ok(())
    }

    /// Removes the consumer at the server now; without this it goes after half a minute.
    pub async fn close(self) {
        let stream = Stream::Notification.name(self.bus.root());
        drop(self.messages);
        let deleted = self
            .bus
            .jetstream()
            .delete_consumer_from_stream(&self.consumer, &stream)
            .await;
        if let Err(error) = deleted {
            tracing::debug!(partition = self.partition, %error, "a partition's consumer was left to expire");
        }
    }

    fn accept(
        &mut self,
        item: Option<Result<async_nats::jetstream::Message, pull::MessagesError>>,
    ) -> Result<Incoming, ReadError> {
        let partition = self.partition;
        let message = match item {
            Some(Ok(message)) => message,
            Some(Err(error)) => {
                return Err(ReadError::Lost {
                    partition,
                    source: Some(error.into()),
                });
            }
            None => {
                return Err(ReadError::Lost {
                    partition,
                    source: None,
                });
            }
        };
        let place = message.info().map(Into::into).map_err(|error| ReadError::Lost {
            partition,
            source: Some(error),
        })?;
        let incoming = Incoming::new(message.split().0, place);
        if incoming.consumer_sequence != self.expected {
            return Err(ReadError::Gap {
                partition,
                expected: self.expected,
                found: incoming.consumer_sequence,
            });
        }
        self.expected += 1;
        Ok(incoming)
    }

    /// A delivery into a connection that just died shows as a gap only when the next message comes, which may be
    /// tomorrow. So a new connection ends the reader.
    fn check_connection(&self) -> Result<(), ReadError> {
        if self.bus.connections_made() == self.connections && self.bus.is_connected() {
            return Ok(());
        }
        Err(ReadError::Reconnected {
            partition: self.partition,
        })
    }
}

/// Whether the stream still holds what was read. A broker that lost its last writes (no fsync before a power failure)
/// numbers new messages like the lost ones, and starting behind the place would skip them.
async fn check_place(bus: &Bus, partition: u16, after: Place) -> Result<(), ReadError> {
    if after.sequence == 0 {
        return Ok(());
    }
    let name = Stream::Notification.name(bus.root());
    let failed = |source| ReadError::Open { partition, source };
    let stream = bus
        .jetstream()
        .get_stream(name)
        .await
        .map_err(|error| failed(error.into()))?;
    let last_sequence = stream.cached_info().state.last_sequence;
    let rewritten = |found| ReadError::Rewritten {
        partition,
        sequence: after.sequence,
        last_sequence,
        found,
    };
    if after.sequence > last_sequence {
        return Err(rewritten(None));
    }
    let Some(published) = after.published else {
        return Ok(());
    };
    match stream.get_raw_message(after.sequence).await {
        Ok(message) if is_same_moment(message.time, published) => Ok(()),
        Ok(message) => Err(rewritten(Some(message.time))),
        Err(error) => match error.kind() {
            // Expired or purged: nothing speaks against the place.
            LastRawMessageErrorKind::NoMessageFound => Ok(()),
            _ => Err(failed(error.into())),
        },
    }
}

/// To the microsecond, which is what Postgres keeps.
fn is_same_moment(one: OffsetDateTime, other: OffsetDateTime) -> bool {
    one.unix_timestamp_nanos() / 1000 == other.unix_timestamp_nanos() / 1000
}
