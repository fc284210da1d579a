//! The sections that every process reads. Each limit has its unit in its name and a default for one machine.

use std::{fmt, path::PathBuf};

use messaging::TopologyLimits;
use secrecy::SecretString;
use serde::Deserialize;

use super::{Bytes, Count, Hours, Millis, SettingsError};
use crate::section;

section! {
    /// `[database]`
    #[derive(Debug)]
    pub struct DatabaseSettings {
        /// `postgres://user:password@host/database`
        url: Option<SecretString> = None,
        pub connections_max: Count = Count::new(16),
        pub acquire_timeout_ms: Millis = Millis::new(5_000),
        pub statement_timeout_ms: Millis = Millis::new(20_000),
        pub lock_timeout_ms: Millis = Millis::new(10_000),
        /// Migrates the schema at start. Needs a user that owns the tables, which a service's user should not be.
        pub migrate: bool = false,
    }
}

impl DatabaseSettings {
    pub fn url(&self) -> Result<&SecretString, SettingsError> {
        self.url.as_ref().ok_or_else(|| SettingsError::missing("database.url"))
    }
}

/// How a process treats streams and consumers at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provision {
    /// Verify them. `signalbox migrate` creates and changes them. `create`, which services once did, is an alias.
    #[serde(alias = "create")]
    Verify,
}

section! {
    /// `[nats]`, with the sizes of the streams in `[nats.limits]`.
    #[derive(Debug)]
    pub struct NatsSettings {
        /// `nats://user:password@host:4222`; several, separated by commas, for a cluster.
        url: Option<SecretString> = None,
        /// First token of every subject.
        pub root: String = "signalbox".to_owned(),
        pub provision: Provision = Provision::Verify,
        /// A half-open connection is detected after about three of these.
        pub ping_interval_ms: Millis = Millis::new(2_000),
        pub request_timeout_ms: Millis = Millis::new(5_000),
        /// After this the result of a publish is unknown: the message may be stored.
        pub publish_timeout_ms: Millis = Millis::new(5_000),
        /// Messages that are published and not yet acknowledged.
        pub publish_in_flight_max: Count = Count::new(512),
        /// The prefix of reply subjects, so that the server's permissions can keep other users from reading them. None:
        /// `_I.{user of the URL}`.
        pub inbox_prefix: Option<String> = None,
        pub limits: TopologyLimits = TopologyLimits::default(),
    }
}

impl NatsSettings {
    pub fn url(&self) -> Result<&SecretString, SettingsError> {
        self.url.as_ref().ok_or_else(|| SettingsError::missing("nats.url"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

section! {
    /// `[telemetry]`
    pub struct TelemetrySettings {
        pub log_format: LogFormat = LogFormat::Text,
        /// The filter of log lines, as in `RUST_LOG`: `info,delivery=debug`. Added to the defaults that silence libraries.
        pub log: Option<String> = None,
        /// The file to append log lines to. None: standard error.
        pub log_file: Option<PathBuf> = None,
        /// Collector for OTLP over HTTP, without a signal's path: `http://localhost:4318`. None: nothing is sent, and
        /// `/metrics` still works.
        pub otlp_endpoint: Option<String> = None,
        /// The whole address of one signal, instead: `http://localhost:4318/v1/traces`.
        pub otlp_traces_endpoint: Option<String> = None,
        pub otlp_metrics_endpoint: Option<String> = None,
        pub otlp_logs_endpoint: Option<String> = None,
        /// For a collector that does not take all three signals.
        pub traces_exporter: SignalExporter = SignalExporter::Otlp,
        pub metrics_exporter: SignalExporter = SignalExporter::Otlp,
        pub logs_exporter: SignalExporter = SignalExporter::Otlp,
        pub service_namespace: String = "signalbox".to_owned(),
        /// The share of traces started here that are sent, 0 to 1. A caller's sampling decision takes precedence.
        pub trace_ratio: f64 = 1.0,
        pub metrics_interval_ms: Millis = Millis::new(15_000),
        /// Longest wait for the collector when the process stops.
        pub flush_timeout_ms: Millis = Millis::new(3_000),
    }
}

/// Whether a signal is sent to the collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalExporter {
    Otlp,
    None,
}

/// The signals of a collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    Traces,
    Metrics,
    Logs,
}

impl TelemetrySettings {
    /// The address of a signal's collector; none: the signal is not sent.
    pub fn address(&self, signal: Signal) -> Option<String> {
        let (exporter, own, path) = match signal {
            Signal::Traces => (self.traces_exporter, &self.otlp_traces_endpoint, "traces"),
            Signal::Metrics => (self.metrics_exporter, &self.otlp_metrics_endpoint, "metrics"),
            Signal::Logs => (self.logs_exporter, &self.otlp_logs_endpoint, "logs"),
        };
        if exporter == SignalExporter::None {
            return None;
        }
        let common = || {
            Some(format!(
                "{}/v1/{path}",
                self.otlp_endpoint.as_ref()?.trim_end_matches('/')
            ))
        };
        own.clone().or_else(common)
    }
}

/// A collector's address can hold a token.
impl fmt::Debug for TelemetrySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelemetrySettings")
            .field("log_format", &self.log_format)
            .field("log", &self.log)
            .field("log_file", &self.log_file)
            .field("traces", &self.address(Signal::Traces).is_some())
            .field("metrics", &self.address(Signal::Metrics).is_some())
            .field("logs", &self.address(Signal::Logs).is_some())
            .finish_non_exhaustive()
    }
}

section! {
    /// `[http]`: limits of every HTTP server. The address is in the service's own section.
    #[derive(Debug)]
    pub struct HttpSettings {
        pub body_bytes_max: Bytes = Bytes::new(1024 * 1024),
        /// All headers of a request together; more is answered with 431.
        pub header_bytes_max: Bytes = Bytes::new(16 * 1024),
        /// From the end of a request, or the beginning of the connection, to the end of the next request's headers: a
        /// connection may stay idle this long.
        pub header_timeout_ms: Millis = Millis::new(30_000),
        /// How far a client may fall behind `answer_bytes_per_second_min`; also the longest silence within a body.
        pub body_timeout_ms: Millis = Millis::new(10_000),
        /// From the end of the headers to the beginning of the response.
        pub request_timeout_ms: Millis = Millis::new(30_000),
        pub connections_max: Count = Count::new(1024),
        /// Concurrent requests; more are answered with 503.
        pub requests_max: Count = Count::new(512),
        /// The limit of one check of `/readyz`.
        pub check_timeout_ms: Millis = Millis::new(1_000),
        /// Connections of one address, or one /64 of IPv6; more are closed unread. The limits of addresses do not apply to
        /// loopback.
        pub address_connections_max: Count = Count::new(256),
        /// Sustained rate of one address; more requests are answered with 429.
        pub address_requests_per_second: Count = Count::new(2_000),
        /// Burst of one idle address.
        pub address_requests_burst: Count = Count::new(5_000),
        /// Sustained rate of one account's keys, in this process; more requests are answered with 429.
        pub account_requests_per_second: Count = Count::new(1_000),
        /// Burst of an idle account's keys.
        pub account_requests_burst: Count = Count::new(5_000),
        /// Concurrent requests of one account, until their responses are taken. At most a quarter of the part of
        /// `requests_max` that the others leave. More are answered with 429.
        pub account_requests_max: Count = Count::new(128),
        /// Concurrent requests of one account that use the database. At most a quarter of `database.connections_max`
        /// applies. More wait for `account_wait_ms`.
        pub account_connections_max: Count = Count::new(4),
        /// How long a request waits for one of these connections before it is answered with 429.
        pub account_wait_ms: Millis = Millis::new(2_000),
        /// Bytes of one account's responses that its clients have not taken yet, and of its request bodies; more requests
        /// are answered with 429. A body counts with its declared size, from before it is read until it is answered.
        pub account_answer_bytes_max: Bytes = Bytes::new(32 * 1024 * 1024),
        /// The same for all accounts together. One account may have a quarter of what the others leave.
        pub answer_bytes_max: Bytes = Bytes::new(128 * 1024 * 1024),
        /// A client that takes its response, or sends its body, more slowly is disconnected once it is `body_timeout_ms`
        /// behind.
        pub answer_bytes_per_second_min: Bytes = Bytes::new(16 * 1024),
    }
}

impl HttpSettings {
    /// Applies the share of one account that a pool of this size allows.
    pub(crate) fn with_pool(mut self, database: &DatabaseSettings) -> HttpSettings {
        let quarter = Count::new((database.connections_max.get() / 4).max(1));
        self.account_connections_max = self.account_connections_max.min(quarter);
        self
    }
}

section! {
    /// `[process]`
    #[derive(Debug)]
    pub struct ProcessSettings {
        /// How long running work may take to end after a signal. Less than the ten seconds after which containers are
        /// killed.
        pub stop_grace_ms: Millis = Millis::new(8_000),
        /// How long the start waits for Postgres and NATS to answer.
        pub dependencies_timeout_ms: Millis = Millis::new(30_000),
    }
}

section! {
    /// `[outbox]`: the relay of messages that were stored with the change that caused them.
    #[derive(Debug)]
    pub struct OutboxSettings {
        /// Rows queued in memory, within 64 MiB; the rest is left to the sweep. A row has the messages of a transaction and an account, at
        /// most 256.
        pub queue_messages_max: Count = Count::new(16_384),
        /// Messages published at one time, within 2 MiB; the row that reaches a limit is published with them. The sweep publishes so many
        /// rows.
        pub batch_messages_max: Count = Count::new(256),
        pub sweep_interval_ms: Millis = Millis::new(2_000),
        /// The sweep skips rows younger than this: the process that wrote them publishes them.
        pub sweep_age_ms: Millis = Millis::new(5_000),
        /// A claimed row that was not deleted within this time may be claimed again.
        pub claim_timeout_ms: Millis = Millis::new(15_000),
        /// The time until the broker is asked whether it still has an unread message. Repeated at intervals of one to six
        /// times this long.
        pub unread_look_ms: Millis = Millis::new(10_000),
        /// An unread message is published again after this long, whatever the broker says.
        pub unread_again_ms: Millis = Millis::new(60 * 60 * 1000),
        /// An unread message becomes a dead letter at this age. Longer than the streams keep it.
        pub unread_kept_hours: Hours = Hours::new(14 * 24),
    }
}

section! {
    /// `[replica]`: the id under which this process holds leases.
    #[derive(Debug)]
    pub struct ReplicaSettings {
        /// Other replicas take over the leases of this process when it was not renewed for this long.
        pub lease_ms: Millis = Millis::new(3_000),
        pub renew_ms: Millis = Millis::new(500),
    }
}
