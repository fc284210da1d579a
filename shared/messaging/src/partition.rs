//! Reading one partition of the notifications in order, from a place that the caller keeps.
//!
//! The place lies in Postgres and moves in the transaction that writes what was read. So there are no acknowledgements
//! here, and nothing at the server: each read asks for what follows a sequence (JetStream's batch direct get), and a read
//! that went wrong is asked for again. Nothing can be skipped. A read begins with the message at the place itself, which
//! proves that the stream still is the one that was read.
//!
//! Headers that the client library cannot read end its connection, and so each batch with such a message in it. A read that
//! lost its connection is therefore made one message at a time ([`crate::one_message`]).
//!
//! When to ask is said by the stream itself, on the partition's doorbell. A ring can be lost; whoever waits in silence
//! looks by itself.
//!
//! What a publisher puts into its headers stands in the answers beside what the server says there. The server's is the
//! last of its name, and none of those names reaches a handler.

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
    incoming::DeliveryPlace,
    one_message::{OneMessage, message_at, message_from},
    topology::{self, partition_filter},
};

/// How far a partition has been read.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StreamOffset {
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
    // Of the leader: what a replica does not have yet must not be taken for read, and purged.
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

/// Read at once, and handed out in the portions that are asked for. The server counts what is still to come for each
/// read, which with a million behind it takes as long as a few hundred messages.
const READ_MESSAGES: usize = 512;
/// So much at once, over all messages of a read: more where the server takes messages of more than a third of it.
const READ_BYTES: usize = 4 * 1024 * 1024;
/// Before the second look for what was rung for; doubled with each further one.
const AGAIN_MIN: Duration = Duration::from_millis(5);
/// From one answer to the next. A read from a cold disk takes its time.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

pub struct PartitionReader {
    bus: Bus,
    partition: u16,
    /// Of the stream: another one of the same name was made later.
    created: OffsetDateTime,
    /// Of the last message read.
    place: StreamOffset,
    /// No batch can be read from before this sequence, since one of the messages there ends the connection.
    batches_from: u64,
    /// Read, and not handed out.
    read: VecDeque<Incoming>,
    /// As of the last read.
    has_more: bool,
    /// The last sequence that was rung for.
    rung: watch::Receiver<u64>,
    /// What was rung for when the last read was asked for.
    looked_for: u64,
    /// How long to wait with another look for what was rung for and not found.
    again: Duration,
    _listening: AbortOnDropHandle<()>,
}

impl PartitionReader {
    /// Starts behind `after`, and reads what is there.
    pub async fn open(bus: &Bus, partition: u16, after: StreamOffset) -> Result<PartitionReader, ReadError> {
        let failed = |source: Cause| ReadError::Open { partition, source };
        let bell = topology::doorbell(bus.root(), &partition.to_string());
        let mut bell = bus
            .client()
            .subscribe(bell)
            .await
            .map_err(|error| failed(error.into()))?;
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

    /// Returns when there is something to read, as far as the reader was told, or when `longest` has passed. Dropping this future
    /// loses nothing.
    pub async fn ready(&mut self, longest: Duration) {
        if self.read.is_empty() && !self.has_more {
            self.wait(longest).await;
        }
    }

    /// What is there, at most `max`: one request, unless an earlier one brought more than was asked for.
    ///
    /// Dropping this future loses nothing. After an error, the reader is spent.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<Incoming>, ReadError> {
        if self.read.is_empty() {
            self.read_on().await?;
        }
        Ok(self.read.drain(..max.min(self.read.len())).collect())
    }

    /// Until something comes, at most `longest`: a ring may be lost. What was rung for and not found is looked for again
    /// soon, and less and less: a replica of the stream that lags has it in a moment, and if it was deleted nobody has.
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
        // Without a bell, too, there is silence.
        if is_closed {
            sleep(wait).await;
        }
    }

    fn known(&self) -> u64 {
        self.place.sequence.max(self.looked_for)
    }

    /// Reads what follows the place, and moves it.
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

    /// Whether the stream still holds what was read, by the message at the place. One that is gone may have expired or been
    /// purged; or the stream is another, or lost its last writes (no fsync before a power failure) and numbers new
    /// messages like the lost ones, which need not be of this partition.
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

/// What a read gave.
struct Read {
    messages: VecDeque<Incoming>,
    has_more: bool,
    /// The last message whose headers cannot be read; 0 where there was none.
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

/// Messages of a partition from a sequence on, and whether there are more.
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
    // One for each read: the server forgets where its answers go as soon as nobody listens.
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

/// A stored message has a sequence; the end of a batch has none, whatever status somebody has written above a message.
fn read_answer(root: &Root, mut answer: async_nats::Message) -> Result<Answer, Cause> {
    let headers = answer.headers.take().unwrap_or_default();
    let Some(sequence) = number(&headers, SEQUENCE) else {
        return match answer.status {
            // Its end is said, and so is how many follow; or there is nothing.
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
    let place = DeliveryPlace {
        stream_sequence: sequence,
        deliveries: 1,
        published,
    };
    let mut message = Incoming::new(answer, place);
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
/// What the server adds to a message that is read directly, behind whatever a publisher wrote under the same names.
const OF_THE_SERVER: [&str; 6] = [SEQUENCE, SUBJECT, TIME, PENDING, "Nats-Stream", "Nats-Last-Sequence"];

/// The server's own value: the last of the name.
fn last<'a>(headers: &'a HeaderMap, name: &'static str) -> Option<&'a str> {
    headers.get_last(name).map(|value| value.as_str())
}

fn number(headers: &HeaderMap, name: &'static str) -> Option<u64> {
    last(headers, name)?.parse().ok()
}

/// To the microsecond, which is what Postgres keeps.
pub fn is_same_moment(one: OffsetDateTime, other: OffsetDateTime) -> bool {
    one.unix_timestamp_nanos() / 1000 == other.unix_timestamp_nanos() / 1000
}
