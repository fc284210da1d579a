//! A model of JetStream: the stream of notifications, read by sequence without acknowledgements, and the durable consumers'
//! messages, delivered in any order until they are acknowledged. It may lose everything.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    database::{
        self, Millis, moment,
        outbox::{Message, Published, Service},
    },
    random::Random,
    settings::{ACK_WAIT, DEDUP_WINDOW, PARTITIONS},
};
use bytes::Bytes;
use messaging::Incoming;
use uuid::Uuid;

#[derive(Clone, Debug)]
struct Stored {
    partition: usize,
    published: Published,
    at: Millis,
}

/// A message of a durable consumer.
#[derive(Clone, Debug)]
pub(crate) struct Queued {
    pub(crate) token: u64,
    pub(crate) message: Message,
    /// Number of deliveries.
    pub(crate) deliveries: u32,
    /// Not delivered before then: it was postponed, or a process holds it.
    pub(crate) not_before: Millis,
}

#[derive(Debug)]
pub(crate) struct Broker {
    /// Identifies the store; a wiped one gets another.
    pub(crate) created: Millis,
    /// Grows when sequences of the stream are assigned again.
    pub(crate) numbering: u64,
    /// Unavailable until then.
    pub(crate) down_until: Millis,
    stream: BTreeMap<u64, Stored>,
    last_sequence: u64,
    pub(crate) queued: Vec<Queued>,
    remembered: BTreeMap<String, Millis>,
    /// All events that were ever stored, a wiped store's too.
    pub(crate) events: BTreeSet<String>,
    tokens: u64,
}

impl Broker {
    pub(crate) fn new() -> Broker {
        Broker {
            created: 0,
            numbering: 0,
            down_until: 0,
            stream: BTreeMap::new(),
            last_sequence: 0,
            queued: Vec::new(),
            remembered: BTreeMap::new(),
            events: BTreeSet::new(),
            tokens: 0,
        }
    }

    /// The service that reads it.
    pub(crate) fn reader(message: &Message) -> Service {
        match message {
            Message::SessionResolved(_)
            | Message::SessionClosed(_)
            | Message::SessionStopRequested(_)
            | Message::ToolFinished(_) => Service::Delivery,
            Message::ToolRequested(_) | Message::ToolApproved(_) => Service::ToolGateway,
            Message::Notification(_) => Service::Resolver,
            Message::Event(_) => unreachable!("no service reads events"),
        }
    }

    /// Stores it, unless it is a duplicate.
    pub(crate) fn publish(&mut self, message: Message, now: Millis) {
        match message {
            Message::Notification(published) => {
                self.last_sequence += 1;
                let stored = Stored {
                    partition: partition(&published.subject),
                    published,
                    at: now,
                };
                self.stream.insert(self.last_sequence, stored);
            }
            Message::Event(id) => {
                self.events.insert(id);
            }
            Message::SessionResolved(_)
            | Message::SessionClosed(_)
            | Message::SessionStopRequested(_)
            | Message::ToolRequested(_)
            | Message::ToolFinished(_)
            | Message::ToolApproved(_) => {
                let id = message.id();
                let until = self.remembered.get(&id).copied();
                if until.is_some_and(|until| until > now) {
                    return;
                }
                self.remembered.insert(id, now + DEDUP_WINDOW);
                self.enqueue(message, now);
            }
        }
    }

    fn enqueue(&mut self, message: Message, now: Millis) {
        self.tokens += 1;
        self.queued.push(Queued {
            token: self.tokens,
            message,
            deliveries: 0,
            not_before: now,
        });
    }

    /// Stores it regardless of the deduplication window, as after a restart of the server.
    pub(crate) fn duplicate(&mut self, message: Message, now: Millis) {
        match message {
            Message::Notification(_) | Message::Event(_) => self.publish(message, now),
            Message::SessionResolved(_)
            | Message::SessionClosed(_)
            | Message::SessionStopRequested(_)
            | Message::ToolRequested(_)
            | Message::ToolFinished(_)
            | Message::ToolApproved(_) => self.enqueue(message, now),
        }
    }

    /// Up to `max` messages of a partition after an offset, as a reader gets them.
    pub(crate) fn read(&self, partition: usize, after: u64, max: usize) -> Vec<Incoming> {
        let behind = self
            .stream
            .range(after + 1..)
            .filter(|(_, stored)| stored.partition == partition);
        behind
            .take(max)
            .map(|(sequence, stored)| Incoming {
                subject: stored
                    .published
                    .subject
                    .replacen(".notification.", &format!(".partition.{partition}."), 1),
                headers: stored.published.headers.clone(),
                payload: Bytes::clone(&stored.published.payload),
                stream_sequence: *sequence,
                deliveries: 1,
                published: moment(stored.at),
            })
            .collect()
    }

    pub(crate) fn has_unread(&self, partition: usize, after: u64) -> bool {
        self.stream
            .range(after + 1..)
            .any(|(_, stored)| stored.partition == partition)
    }

    /// Whether the stream still holds the messages after this offset (`check_place`).
    pub(crate) fn holds(&self, place: &messaging::StreamOffset) -> bool {
        place.sequence == 0
            || (place.sequence <= self.last_sequence
                && self
                    .stream
                    .get(&place.sequence)
                    .is_none_or(|stored| place.published.is_none_or(|at| at == moment(stored.at))))
    }

    /// Delivers a message; it is redelivered if it is not acknowledged in time.
    pub(crate) fn hand_out(&mut self, n: usize, now: Millis) -> Queued {
        let queued = &mut self.queued[n];
        queued.deliveries += 1;
        queued.not_before = now + ACK_WAIT;
        queued.clone()
    }

    pub(crate) fn acknowledge(&mut self, token: u64) {
        self.queued.retain(|queued| queued.token != token);
    }

    pub(crate) fn put_back(&mut self, token: u64, until: Millis) {
        if let Some(queued) = self.queued.iter_mut().find(|queued| queued.token == token) {
            queued.not_before = until;
        }
    }

    /// Replaces the store by an empty one. Gives the lost messages that have no row.
    pub(crate) fn wipe(&mut self, now: Millis) -> Vec<Message> {
        // Two consecutive stores have different creation times.
        self.created = now.max(self.created + 1);
        self.numbering += 1;
        self.last_sequence = 0;
        self.stream.clear();
        self.remembered.clear();
        std::mem::take(&mut self.queued)
            .into_iter()
            .map(|queued| queued.message)
            .collect()
    }

    /// A power failure: the last writes to the stream are lost, and their sequences are assigned again.
    pub(crate) fn lose_tail(&mut self, random: &mut Random) -> bool {
        let lost = 1 + random.below(3) as u64;
        let keep = self.last_sequence.saturating_sub(lost);
        let before = self.stream.len();
        self.stream.retain(|sequence, _| *sequence <= keep);
        self.last_sequence = keep;
        self.numbering += 1;
        before != self.stream.len()
    }

    /// Repeats one of the stream's messages.
    pub(crate) fn any_notification(&self, random: &mut Random) -> Option<Message> {
        let n = random.below(self.stream.len());
        self.stream
            .values()
            .nth(n)
            .map(|stored| Message::Notification(stored.published.clone()))
    }

    /// Identified by its receipt, which no other message has.
    pub(crate) fn still_has(&self, receipt: Uuid) -> bool {
        let read = |stored: &Stored| database::outbox::receipt(&stored.published.headers) == Some(receipt);
        self.stream.values().any(read)
    }

    /// Time of the next delivery of a waiting message.
    pub(crate) fn next_due(&self) -> Option<Millis> {
        self.queued.iter().map(|queued| queued.not_before).min()
    }
}

/// The partition by account and task, as the server's subject transform.
fn partition(subject: &str) -> usize {
    let hash = subject.bytes().fold(7_usize, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(usize::from(byte))
    });
    hash % PARTITIONS
}
