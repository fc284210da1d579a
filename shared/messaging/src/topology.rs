//! Every stream, consumer and limit, in one table, and the code that applies it to the server.
//!
//! ## Notifications are not deduplicated by the broker
//! `Nats-Msg-Id` on a notification is the notification's id, which is unique per account and chosen by publishers. A
//! stream's deduplication considers neither accounts nor content: for two minutes it would acknowledge, and drop, a
//! second account's `ci-1`, an id reused for other content (which must be refused visibly), and a redrive. So the
//! stream of notifications has none, and the resolver decides, with Postgres (account, id, content).
//!
//! A server takes a window of zero for "two minutes", unless the stream has a source (2.14 and newer). Hence the source
//! of [`stream_config`]: the dead letters, filtered by a subject on which no user can publish, so that it never has a
//! message. On 2.12 the window is the smallest allowed, 100 ms, and this limit remains: **the same `Nats-Msg-Id`
//! published twice within a tenth of a second is stored once, whichever accounts it is for**. The acknowledgement then
//! says `duplicate`; our own publishers put the id into the payload and not into that header.
//!
//! The other streams carry ids that services create (they contain a UUID), and keep the usual window: it saves the cost
//! of a repeated publish and guarantees nothing. A message that shall be delivered *again* needs a new id.
//!
//! ## Partitions
//! The stream of notifications puts a partition into the subject, by a hash of account and task, so that a reader can
//! filter on it with a single subject. The hash is of the task as written: `PROJ-7` and `proj-7` may differ in
//! partition, though they are one task. A publisher that mixes both loses no notification, but loses their mutual
//! order.
//!
//! Partitions are read by sequence, without consumers ([`crate::PartitionReader`]). So that readers need not poll, the
//! stream republishes the headers of stored messages on the [`doorbell`] of the partition.

use std::{sync::LazyLock, time::Duration};

use async_nats::jetstream::{
    consumer::{self, AckPolicy, DeliverPolicy},
    stream::{
        Config as StreamConfig, DiscardPolicy, Republish, RetentionPolicy, Source, StorageType, SubjectTransform,
    },
};
pub use contracts::Stream;
use contracts::{
    Root, User,
    message::{self, Hop},
    subject::PARTITION_TOKEN,
};
use domain::{Bytes, Count, Hours, Millis, error_chain};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{Bus, ServerVersion, TopologyError};

mod ensure;

pub(crate) use ensure::consumer_found;

/// Partitions of the notifications. Another number would put a session's notifications into two partitions at once.
pub const PARTITIONS: u16 = 8;

/// How often the operator's process checks that everything exists.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// The interval after a failed check: the server may still be starting.
const KEEP_AGAIN: Duration = Duration::from_millis(250);

/// Sizes and ages, set by the operator. `signalbox migrate` applies them to existing streams.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopologyLimits {
    /// 1 on a single server; 3 for a cluster. 2 is no safer than 1.
    pub replicas: Count,
    /// A full stream refuses notifications: none is dropped for a newer one.
    pub notification_bytes_max: Bytes,
    pub notification_age_max_hours: Hours,
    pub session_bytes_max: Bytes,
    pub session_age_max_hours: Hours,
    pub tool_bytes_max: Bytes,
    pub tool_age_max_hours: Hours,
    pub event_bytes_max: Bytes,
    pub event_age_max_hours: Hours,
    pub dead_bytes_max: Bytes,
    pub dead_age_max_hours: Hours,
    /// One message with its headers, on any stream. The server's `max_payload` is the other limit.
    pub message_bytes_max: Bytes,
    /// An unsettled delivery is redelivered after this long. The consumer loop extends it while it works, so this is
    /// how long the messages of a dead process wait for another replica.
    pub ack_wait_ms: Millis,
    /// Delivered and not yet settled, per consumer, over all replicas.
    pub ack_pending_max: Count,
}

impl Default for TopologyLimits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        TopologyLimits {
            replicas: Count::new(1),
            notification_bytes_max: Bytes::new(1024 * MIB),
            notification_age_max_hours: Hours::new(7 * 24),
            session_bytes_max: Bytes::new(128 * MIB),
            session_age_max_hours: Hours::new(24),
            tool_bytes_max: Bytes::new(512 * MIB),
            tool_age_max_hours: Hours::new(24),
            event_bytes_max: Bytes::new(512 * MIB),
            event_age_max_hours: Hours::new(7 * 24),
            dead_bytes_max: Bytes::new(256 * MIB),
            dead_age_max_hours: Hours::new(30 * 24),
            message_bytes_max: Bytes::new(MIB),
            ack_wait_ms: Millis::new(3_000),
            ack_pending_max: Count::new(4096),
        }
    }
}

/// Whether this process creates and changes streams and consumers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provision {
    /// `signalbox migrate` and `signalbox up`, as the operator.
    Update,
    /// Services may only verify: a missing stream, or one that is less than required, stops the start.
    Verify,
}

/// The streams and consumers that the server should have, and whether they may be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    pub limits: TopologyLimits,
    pub provision: Provision,
    /// The user whose streams and consumers are in scope: a service verifies those that it reads from.
    pub scope: User,
}

/// A durable consumer, with one filter: several filters cost the server twenty times the work. Derived from the tables
/// of [`contracts::message`]: one for each stored message that a service consumes.
#[derive(PartialEq, Eq, Hash, Debug)]
pub struct Durable {
    pub reader: User,
    pub stream: Stream,
    kind: &'static str,
    /// Service, noun, fact.
    name: String,
    /// Below the root.
    filter: String,
}

static DURABLES: LazyLock<Vec<Durable>> = LazyLock::new(|| {
    let consumed = |reader: User| {
        // The resolver reads notifications by sequence.
        let of_consumer = move |hop: &&Hop| hop.is_consumed_by(reader) && hop.stream != Some(Stream::Notification);
        message::hops().filter(of_consumer).filter_map(move |hop| {
            Some(Durable {
                reader,
                stream: hop.stream?,
                kind: hop.kind,
                name: format!("{}_{}", reader.name(), hop.kind).replace(['-', '.'], "_"),
                filter: if hop.is_event {
                    hop.pattern()
                } else {
                    format!("{}.>", hop.kind)
                },
            })
        })
    };
    message::SERVICES.iter().flat_map(|reader| consumed(*reader)).collect()
});

/// The streams that a user requires at its start: those that it reads from.
pub fn streams_read(user: User) -> Vec<Stream> {
    let reads = |stream: &Stream| message::hops().any(|hop| hop.stream == Some(*stream) && hop.is_consumed_by(user));
    match user {
        // It reports the fill level of the dead letters, which no service reads.
        User::Resolver => vec![Stream::Dead, Stream::Notification],
        User::Delivery | User::ToolGateway | User::Orchestrator => Stream::ALL.into_iter().filter(reads).collect(),
        User::Publisher => Vec::new(),
        User::Operator => Stream::ALL.into(),
    }
}

impl Durable {
    pub fn all() -> &'static [Durable] {
        &DURABLES
    }

    pub fn read_by(user: User) -> Vec<&'static Durable> {
        let own = |durable: &&Durable| user == User::Operator || durable.reader == user;
        Durable::all().iter().filter(own).collect()
    }

    /// The consumer of a message or an event, by its kind.
    ///
    /// # Panics
    /// If the tables of messages name no such consumer.
    pub fn of(reader: User, kind: &str) -> &'static Durable {
        let declared = DURABLES
            .iter()
            .find(|durable| durable.reader == reader && durable.kind == kind);
        declared.unwrap_or_else(|| panic!("{} consumes no {kind} (contracts::message)", reader.name()))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn filter(&self, root: &Root) -> String {
        format!("{root}.{}", self.filter)
    }
}

/// The filter of a partition's reader.
pub fn partition_filter(root: &Root, partition: u16) -> String {
    format!("{root}.{PARTITION_TOKEN}.{partition}.>")
}

/// The subject on which the stream of notifications announces a stored message of a partition.
pub(crate) fn doorbell(root: &Root, partition: &str) -> String {
    format!("{root}.stored.{partition}")
}

/// The server's advisories of deleted streams and consumers.
pub(crate) const DELETIONS: [&str; 2] = [
    "$JS.EVENT.ADVISORY.STREAM.DELETED.*",
    "$JS.EVENT.ADVISORY.CONSUMER.DELETED.*.*",
];

/// Whether the stream of notifications can do without deduplication on this server.
fn can_switch_off_deduplication(server: ServerVersion) -> bool {
    server >= ServerVersion { major: 2, minor: 14 }
}

/// A stream as it should be. Other fields (placement, compression) are left to the operator.
pub fn stream_config(stream: Stream, root: &Root, limits: &TopologyLimits, server: ServerVersion) -> StreamConfig {
    let common = StreamConfig {
        name: stream.name(root),
        subjects: vec![stream.subject(root)],
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        num_replicas: limits.replicas.usize(),
        max_consumers: -1,
        max_messages: -1,
        max_messages_per_subject: -1,
        // Larger than any server accepts.
        max_message_size: i32::try_from(limits.message_bytes_max.get()).unwrap_or(i32::MAX),
        discard: DiscardPolicy::Old,
        duplicate_window: Duration::from_secs(120),
        ..StreamConfig::default()
    };
    match stream {
        Stream::Notification => {
            let no_deduplication = can_switch_off_deduplication(server);
            StreamConfig {
                description: Some("notifications, from anyone to the resolver".to_owned()),
                subject_transform: Some(SubjectTransform {
                    source: stream.subject(root),
                    destination: format!(
                        "{root}.{PARTITION_TOKEN}.{{{{partition({PARTITIONS},1,2)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"
                    ),
                }),
                allow_direct: true,
                republish: Some(Republish {
                    source: format!("{root}.{PARTITION_TOKEN}.*.*.*"),
                    destination: doorbell(root, "{{wildcard(1)}}"),
                    headers_only: true,
                }),
                // The resolver deletes messages that all its offsets have passed; an unread message is never dropped
                // for a new one.
                discard: DiscardPolicy::New,
                max_bytes: limits.notification_bytes_max.i64(),
                max_age: limits.notification_age_max_hours.duration(),
                duplicate_window: if no_deduplication {
                    Duration::ZERO
                } else {
                    Duration::from_millis(100)
                },
                sources: no_deduplication.then(|| {
                    vec![Source {
                        name: Stream::Dead.name(root),
                        // Two tokens shorter than the subjects of the dead letters: never matches.
                        filter_subject: Some(format!("{root}.dead.none")),
                        ..Source::default()
                    }]
                }),
                ..common
            }
        }
        Stream::Session => StreamConfig {
            description: Some("sessions with work, sessions that ended: wake-ups, the truth is in Postgres".to_owned()),
            max_bytes: limits.session_bytes_max.i64(),
            max_age: limits.session_age_max_hours.duration(),
            ..common
        },
        Stream::Tool => StreamConfig {
            description: Some("tool calls and their results: wake-ups, the truth is in Postgres".to_owned()),
            max_bytes: limits.tool_bytes_max.i64(),
            max_age: limits.tool_age_max_hours.duration(),
            ..common
        },
        Stream::Event => StreamConfig {
            description: Some("what happened, for anyone".to_owned()),
            max_bytes: limits.event_bytes_max.i64(),
            max_age: limits.event_age_max_hours.duration(),
            ..common
        },
        Stream::Dead => StreamConfig {
            description: Some("messages that cannot be processed, for operators".to_owned()),
            max_bytes: limits.dead_bytes_max.i64(),
            max_age: limits.dead_age_max_hours.duration(),
            ..common
        },
    }
}

/// A durable consumer as it should be.
pub fn consumer_config(durable: &Durable, root: &Root, limits: &TopologyLimits) -> consumer::pull::Config {
    consumer::pull::Config {
        durable_name: Some(durable.name().to_owned()),
        name: Some(durable.name().to_owned()),
        filter_subject: durable.filter(root),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: limits.ack_wait_ms.duration(),
        // At a limit the server would drop a message silently; the consumer loop counts and buries instead.
        max_deliver: -1,
        max_ack_pending: limits.ack_pending_max.get().into(),
        ..consumer::pull::Config::default()
    }
}

impl Topology {
    /// Whether all streams and consumers in scope exist, with any configuration: for readiness.
    pub async fn find_missing(&self, bus: &Bus) -> Result<(), TopologyError> {
        for stream in streams_read(self.scope) {
            ensure::stream_found(bus, &stream.name(bus.root())).await?;
        }
        for durable in Durable::read_by(self.scope) {
            consumer_found(bus, durable).await?;
        }
        Ok(())
    }

    /// Recreates missing streams and consumers, until `stop`: in a process that acts as the operator. Checks after each
    /// new connection, since the server may have lost its store, and periodically.
    pub async fn keep(&self, bus: &Bus, stop: CancellationToken) {
        let mut pause = KEEP_EVERY;
        loop {
            let connections = bus.connections_made();
            tokio::select! {
                () = stop.cancelled() => return,
                () = bus.reconnected(connections) => {}
                () = sleep(pause) => {}
            }
            // Outside of the select: a started change is completed.
            let kept = match self.find_missing(bus).await {
                Err(TopologyError::Missing { what }) => {
                    tracing::warn!(what, "missing on the NATS server; recreating it");
                    self.ensure(bus).await
                }
                looked => looked,
            };
            pause = KEEP_EVERY;
            if let Err(error) = kept {
                let error = error_chain(&error);
                tracing::info!(error, "could not verify the streams; will retry");
                pause = KEEP_AGAIN;
            }
        }
    }

    /// Creates, updates or verifies all streams and consumers in scope. Idempotent, and safe to run from several
    /// processes at once.
    pub async fn ensure(&self, bus: &Bus) -> Result<(), TopologyError> {
        if !can_switch_off_deduplication(bus.server_version()) {
            tracing::warn!(
                "this NATS server is older than 2.14: a Nats-Msg-Id that two accounts use within a tenth of a second \
                 is stored for one of them"
            );
        }
        for stream in streams_read(self.scope) {
            let wanted = stream_config(stream, bus.root(), &self.limits, bus.server_version());
            ensure::stream(bus, wanted, self.provision).await?;
        }
        for durable in Durable::read_by(self.scope) {
            let wanted = consumer_config(durable, bus.root(), &self.limits);
            ensure::consumer(bus, durable, wanted, self.provision).await?;
        }
        Ok(())
    }
}

/// `schemas/topology.md`: the table for people, with the default limits.
pub fn markdown(root: &Root) -> String {
    let limits = TopologyLimits::default();
    let newest = ServerVersion { major: 2, minor: 15 };
    let mut text = String::from("# Streams and consumers\n\nGenerated from `shared/messaging/src/topology.rs`.\n\n");
    text.push_str("## Streams\n\n| stream | subjects | stored as | when full | bytes at most | age at most | deduplication | carries |\n|---|---|---|---|---|---|---|---|\n");
    for stream in Stream::ALL {
        let config = stream_config(stream, root, &limits, newest);
        let stored_as = config
            .subject_transform
            .as_ref()
            .map_or("as published".to_owned(), |transform| {
                format!("`{}`", transform.destination)
            });
        let window = match config.duplicate_window.as_secs() {
            0 => "none (100 ms before 2.14)".to_owned(),
            seconds => format!("{seconds} s"),
        };
        text += &format!(
            "| `{}` | `{}` | {stored_as} | {} | {} MiB | {} | {window} | {} |\n",
            config.name,
            config.subjects.join("` `"),
            match config.discard {
                DiscardPolicy::New => "refuses",
                DiscardPolicy::Old => "drops the oldest",
            },
            config.max_bytes / (1024 * 1024),
            age(config.max_age),
            config.description.unwrap_or_default(),
        );
    }
    let message_bytes_max = limits.message_bytes_max.get() / 1024;
    text += &format!(
        "\nFile storage, limits retention, {} replica; a message has at most {message_bytes_max} KiB, headers included.\n\n",
        limits.replicas.get()
    );
    text.push_str("## Consumers\n\n| consumer | stream | filter | acknowledged within | unsettled at most |\n|---|---|---|---|---|\n");
    for durable in Durable::all() {
        let config = consumer_config(durable, root, &limits);
        text += &format!(
            "| `{}` | `{}` | `{}` | {} s | {} |\n",
            durable.name(),
            durable.stream.name(root),
            config.filter_subject,
            config.ack_wait.as_secs(),
            config.max_ack_pending,
        );
    }
    text += &format!(
        "\nDurable pull consumers with explicit acknowledgement and unlimited deliveries: the consumer loop counts attempts.\n\
         Notifications have no durable consumer: the resolver reads each of the {PARTITIONS} partitions \
         (`{root}.{PARTITION_TOKEN}.{{p}}.>`) from a\nplace it keeps in Postgres, by sequence (batch direct get), and is told by `{root}.stored.{{p}}` that something came.\n"
    );
    text
}

fn age(age: Duration) -> String {
    match age.as_secs() / 3600 {
        hours if hours % 24 == 0 => format!("{} d", hours / 24),
        hours => format!("{hours} h"),
    }
}

#[cfg(test)]
mod tests;
