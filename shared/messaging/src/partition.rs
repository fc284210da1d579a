//! Reads one partition of the notifications in order, from an offset that the caller stores.
//!
//! The offset is in Postgres and moves in the transaction that writes the messages. So the reader sends no
//! acknowledgements and keeps no state at the server: each read requests the messages after a sequence (JetStream's
//! batch direct get), and a failed read is repeated. No message can be skipped. A read begins with the message at the
//! offset itself, which proves that the stream is still the one that was read.
//!
//! Headers that the client library cannot parse break its connection, and so does each batch with such a message. After
//! a lost connection, a read is therefore made one message at a time ([`crate::one_message`]).
//!
//! The stream announces new messages on the partition's doorbell. An announcement can be lost, so a reader without one
//! reads after a timeout.
//!
//! A publisher's headers appear in the replies beside those of the server. The server's value is the last of its name,
//! and none of these names reaches a handler.

use std::{collections::VecDeque, time::Duration};

use async_nats::{HeaderMap, StatusCode};
use contracts::Root;
use futures::StreamExt;
use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Bus, Incoming, ReadError, Stream,
    error::Cause,
    one_message::{OneMessage, message_at, message_from},
    topology::{self, partition_filter},
};

/// The offset up to which a partition has been read.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StreamOffset {
    /// The sequence of the last message read; 0 before the first.
    pub sequence: u64,
    /// When that message was published ([`Incoming::published`]). It distinguishes a stream whose tail was lost and
    /// rewritten under the same sequences. Without it, only a stream that is now too short is detected.
    pub published: Option<OffsetDateTime>,
}

/// Identifies a stream of notifications. A stream that was deleted and recreated has another `created`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamIdentity {
    pub created: OffsetDateTime,
    /// The sequence of the oldest stored message; one past the last if the stream is empty.
    pub first_sequence: u64,
    pub last_sequence: u64,
    pub bytes: u64,
    /// None: the operator has set no limit.
    pub bytes_max: Option<u64>,
}

impl StreamIdentity {
    /// Whether the stream is at least half full. A full stream refuses every notification of every account.
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

/// Deletes notifications before `up_to_sequence`, which must not be above the offset of any partition. The message at
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

/// The first message of a partition after `after`, as the server has it now; none if there is none. Another partition's
/// offset says nothing about this one: a quiet partition's offset stays low for ever.
pub async fn first_unread(bus: &Bus, partition: u16, after: u64) -> Result<Option<Unread>, ReadError> {
    // Read from the leader: a message that a replica lacks must not count as read, and be purged.
    let first = message_from(
        bus,
        Stream::Notification,
        &partition_filter(bus.root(), partition),
        after + 1,
    )
    .await;
    Ok(first.map_err(ReadError::Lookup)?.map(|first| Unread {
        sequence: first.message.sequence,
        published: first.message.time,
    }))
}

/// Messages of one read; the caller takes them in smaller portions. The server counts the remaining messages for each
/// read, which with a backlog of a million takes as long as reading a few hundred messages.
const READ_MESSAGES: usize = 512;
/// Bytes of one read, over all its messages. More if the server accepts messages of more than a third of it.
const READ_BYTES: usize = 4 * 1024 * 1024;
/// The delay before an announced message is read again; doubled with each attempt.
const AGAIN_MIN: Duration = Duration::from_millis(5);
/// The time between two replies. A read from a cold disk is slow.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

pub struct PartitionReader {
    bus: Bus,
    partition: u16,
    /// The stream's creation time: another one of the same name was created later.
    created: OffsetDateTime,
    /// The offset of the last message read.
    place: StreamOffset,
    /// No batch can be read from before this sequence, since one of the messages there breaks the connection.
    batches_from: u64,
    /// Read, and not yet returned.
    read: VecDeque<Incoming>,
    /// As of the last read.
    has_more: bool,
    /// The last sequence that was announced.
    rung: watch::Receiver<u64>,
    /// The announced sequence at the last read.
    looked_for: u64,
    /// The delay before another read for an announced message that was not found.
    again: Duration,
    _listening: AbortOnDropHandle<()>,
}

impl PartitionReader {
    /// Starts after `after`, and reads the first messages.
    pub async fn open(bus: &Bus, partition: u16, after: StreamOffset) -> Result<PartitionReader, ReadError> {
        let bell = topology::doorbell(bus.root(), &partition.to_string());
        let mut bell = bus.client().subscribe(bell).await.map_err(|error| ReadError::Lost {
            partition,
            source: Some(error.into()),
        })?;
        let (ring, rung) = watch::channel(0);
        let listening = tokio::spawn(async move {
            while let Some(message) = bell.next().await {
                if let Some(sequence) = message.headers.as_ref().and_then(|headers| number(headers, SEQUENCE)) {
                    ring.send_replace(sequence);
                }
            }
        });
        let mut reader = PartitionReader {
            bus: bus.clone(),
            partition,
            created: notification_stream_identity(bus).await?.created,
            place: after,
            batches_from: 1,
            read: VecDeque::new(),
            has_more: true,
            rung,
            looked_for: 0,
            again: Duration::ZERO,
            _listening: AbortOnDropHandle::new(listening),
        };
        reader.read_on().await?;
        Ok(reader)
    }

    /// Returns when an unread message was announced, or when `longest` has passed. Cancel-safe.
    pub async fn ready(&mut self, longest: Duration) {
        if self.read.is_empty() && !self.has_more {
            self.wait(longest).await;
        }
    }

    /// The next messages, at most `max`: one request, unless an earlier one returned more than `max`.
    ///
    /// Cancel-safe. After an error, the reader cannot be used any more.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Incoming>, ReadError> {
        if self.read.is_empty() {
            self.read_on().await?;
        }
        Ok(self.read.drain(..max.min(self.read.len())).collect())
    }

    /// Waits for an announcement, at most `longest`: an announcement may be lost. An announced message that was not
    /// found is read again soon, with growing delays: a lagging replica of the stream will have it in a moment, and a
    /// deleted message never arrives.
    async fn wait(&mut self, longest: Duration) {
        let known = self.known();
        self.again = match known > self.place.sequence {
            true => (self.again * 2).clamp(AGAIN_MIN, longest.max(AGAIN_MIN)),
            false => Duration::ZERO,
        };
        let wait = if self.again.is_zero() { longest } else { self.again };
        let is_closed = matches!(
            timeout(wait, self.rung.wait_for(|rung| *rung > known)).await,
            Ok(Err(_))
        );
        // Without a doorbell, only the timeout applies.
        if is_closed {
            sleep(wait).await;
        }
    }

    fn known(&self) -> u64 {
        self.place.sequence.max(self.looked_for)
    }

    /// Reads the messages after the offset, and moves it.
    async fn read_on(&mut self) -> Result<(), ReadError> {
        self.looked_for = *self.rung.borrow();
        let first = self.place.sequence.max(self.batches_from);
        let read = match direct_get(&self.bus, self.partition, first, READ_MESSAGES + 1).await {
            Err(ReadError::Reconnected { .. }) => {
                let first = self.place.sequence.max(1);
                read_one_by_one(&self.bus, self.partition, first, READ_MESSAGES + 1).await
            }
            read => read,
        };
        let Read {
            mut messages,
            has_more,
            last_odd,
        } = read?;
        self.batches_from = self.batches_from.max(last_odd + 1);
        if self.place.sequence > 0 {
            let at_place = messages.pop_front_if(|read| read.stream_sequence == self.place.sequence);
            self.check(at_place.map(|read| read.published)).await?;
        }
        if let Some(last) = messages.back() {
            self.place = StreamOffset {
                sequence: last.stream_sequence,
                published: Some(last.published),
            };
        }
        self.has_more = has_more;
        self.read.append(&mut messages);
        Ok(())
    }

    /// Whether the stream still holds the read messages, by the message at the offset. A missing message may have
    /// expired or been purged. Or the stream is another one, or lost its last writes (no fsync before a power failure)
    /// and reuses their sequences for new messages, which need not be of this partition.
    async fn check(&self, found: Option<OffsetDateTime>) -> Result<(), ReadError> {
        let StreamOffset { sequence, published } = self.place;
        let is_it = |found| published.is_none_or(|published| is_same_moment(found, published));
        if found.is_some_and(is_it) {
            return Ok(());
        }
        let stream = notification_stream_identity(&self.bus).await?;
        let mut there = found;
        if found.is_none() && stream.created == self.created && stream.last_sequence >= sequence {
            if stream.first_sequence > sequence {
                return Ok(());
            }
            let at_place = message_at(&self.bus, Stream::Notification, sequence)
                .await
                .map_err(ReadError::Lookup)?;
            let Some(OneMessage { message, .. }) = at_place else {
                return Ok(());
            };
            let own = partition_filter(self.bus.root(), self.partition);
            if message.subject.starts_with(own.trim_end_matches('>')) && is_it(message.time) {
                return Ok(());
            }
            there = Some(message.time);
        }
        Err(ReadError::Rewritten {
            partition: self.partition,
            sequence,
            last_sequence: stream.last_sequence,
            found: there,
        })
    }
}

/// The result of a read.
struct Read {
    messages: VecDeque<Incoming>,
    has_more: bool,
    /// The last message whose headers cannot be parsed; 0 if there was none.
    last_odd: u64,
}

/// The same as a batch, one message after the other.
async fn read_one_by_one(bus: &Bus, partition: u16, first: u64, messages_max: usize) -> Result<Read, ReadError> {
    let subjects = partition_filter(bus.root(), partition);
    let mut read = Read {
        messages: VecDeque::new(),
        has_more: true,
        last_odd: 0,
    };
    let (mut next, mut bytes) = (first, 0);
    while read.messages.len() < messages_max && bytes < READ_BYTES {
        let one = message_from(bus, Stream::Notification, &subjects, next)
            .await
            .map_err(ReadError::Lookup)?;
        let Some(OneMessage { message, is_odd }) = one else {
            read.has_more = false;
            break;
        };
        next = message.sequence + 1;
        bytes += message.payload.len();
        if is_odd {
            read.last_odd = message.sequence;
        }
        let mut message = Incoming::from(message);
        remove_names_of_the_server(&mut message);
        read.messages.push_back(message);
    }
    Ok(read)
}

/// Messages of a partition from a sequence on, and whether more follow.
async fn direct_get(bus: &Bus, partition: u16, first: u64, messages_max: usize) -> Result<Read, ReadError> {
    let lost = |source: Option<Cause>| ReadError::Lost { partition, source };
    let (client, stream) = (bus.client(), Stream::Notification.name(bus.root()));
    let request = json!({
        "seq": first,
        "batch": messages_max,
        "max_bytes": READ_BYTES.max(client.server_info().max_payload * 3),
        "next_by_subj": partition_filter(bus.root(), partition),
    });
    let connections = bus.connections_made();
    let inbox = client.new_inbox();
    // A subscription for each read: the server drops the reply mapping as soon as the subscription ends.
    let mut answers = client
        .subscribe(inbox.clone())
        .await
        .map_err(|error| lost(Some(error.into())))?;
    let asked = client.publish_with_reply(
        format!("{}.DIRECT.GET.{stream}", bus.api_prefix()),
        inbox,
        request.to_string().into(),
    );
    asked.await.map_err(|error| lost(Some(error.into())))?;
    let mut messages = VecDeque::new();
    loop {
        let answer = tokio::select! {
            biased;
            answer = timeout(ANSWER_WAIT, answers.next()) => answer.map_err(|elapsed| lost(Some(elapsed.into())))?,
            () = bus.reconnected(connections) => return Err(ReadError::Reconnected { partition }),
        };
        let answer = answer.ok_or_else(|| lost(None))?;
        match read_answer(bus.root(), answer).map_err(|source| lost(Some(source)))? {
            Answer::Message(message) => messages.push_back(message),
            Answer::End { has_more } => {
                return Ok(Read {
                    messages,
                    has_more,
                    last_odd: 0,
                });
            }
        }
    }
}

enum Answer {
    Message(Incoming),
    End { has_more: bool },
}

/// A stored message has a sequence; the end of a batch has none, whatever status a publisher wrote into a message.
fn read_answer(root: &Root, mut answer: async_nats::Message) -> Result<Answer, Cause> {
    let headers = answer.headers.take().unwrap_or_default();
    let Some(sequence) = number(&headers, SEQUENCE) else {
        return match answer.status {
            // The end of the batch with the number of remaining messages; or the partition is empty.
            Some(status) if status.as_u16() == END_OF_BATCH => Ok(Answer::End {
                has_more: number(&headers, PENDING).is_some_and(|pending| pending > 0),
            }),
            Some(StatusCode::NOT_FOUND) => Ok(Answer::End { has_more: false }),
            Some(StatusCode::NO_RESPONDERS) => Err(format!(
                "{} is missing on the NATS server, or does not allow direct reads: run `signalbox migrate`",
                Stream::Notification.name(root)
            )
            .into()),
            status => Err(format!("an unexpected answer: {status:?} {:?}", answer.description).into()),
        };
    };
    let subject = last(&headers, SUBJECT).ok_or("an answer without a subject")?;
    answer.subject = subject.into();
    let published = last(&headers, TIME).ok_or("an answer without a time")?;
    let published = OffsetDateTime::parse(published, &Rfc3339)?;
    answer.headers = Some(headers);
    let mut message = Incoming::new(answer, sequence, 1, published);
    remove_names_of_the_server(&mut message);
    Ok(Answer::Message(message))
}

fn remove_names_of_the_server(message: &mut Incoming) {
    for name in OF_THE_SERVER {
        message.headers.0.remove(name);
    }
}

const END_OF_BATCH: u16 = 204;
const SEQUENCE: &str = "Nats-Sequence";
const SUBJECT: &str = "Nats-Subject";
const TIME: &str = "Nats-Time-Stamp";
const PENDING: &str = "Nats-Num-Pending";
/// The headers that the server adds to a directly read message, after those of the same names that a publisher wrote.
const OF_THE_SERVER: [&str; 6] = [SEQUENCE, SUBJECT, TIME, PENDING, "Nats-Stream", "Nats-Last-Sequence"];

/// The server's own value: the last of the name.
fn last<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<&'a str> {
    headers.get_last(name).map(|value| value.as_str())
}

fn number(headers: &HeaderMap, name: &'static str) -> Option<u64> {
    last(headers, name)?.parse().ok()
}

/// Equal to the microsecond, which is the precision of Postgres.
pub fn is_same_moment(one: OffsetDateTime, other: OffsetDateTime) -> bool {
    one.unix_timestamp_nanos() / 1000 == other.unix_timestamp_nanos() / 1000
}
