//! The sections that every process reads. Each limit has its unit in its name and a default that suits one machine.

use std::{fmt, path::PathBuf};

use messaging::TopologyLimits;
use secrecy::SecretString;
use serde::Deserialize;

use super::{Bytes, Count, Hours, Millis, SettingsError};

/// `[database]`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct DatabaseSettings {
    /// `postgres://user:password@host/database`
    url: Option<SecretString>,
    pub connections_max: Count,
    pub acquire_timeout_ms: Millis,
    pub statement_timeout_ms: Millis,
    pub lock_timeout_ms: Millis,
    /// Bring the schema up to date at start. Needs a user that owns the tables, which a service should not be.
    pub migrate: bool,
}

impl Default for DatabaseSettings {
    fn default() -> Self {
        Self {
            url: None,
            connections_max: Count::new(16),
            acquire_timeout_ms: Millis::new(5_000),
            statement_timeout_ms: Millis::new(20_000),
            lock_timeout_ms: Millis::new(10_000),
            migrate: false,
        }
    }
}

impl DatabaseSettings {
    pub fn url(&self) -> Result<&SecretString, SettingsError> {
        self.url.as_ref().ok_or_else(|| SettingsError::missing("database.url"))
    }
}

/// What a process does about streams and consumers at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provision {
    /// Look whether they are as they must be. `signalbox migrate` makes and changes them. `create`, which services once did,
    /// means the same.
    #[serde(alias = "create")]
    Verify,
}

/// `[nats]`, with the sizes of the streams in `[nats.limits]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct NatsSettings {
    /// `nats://user:password@host:4222`; several, separated by commas, for a cluster.
    url: Option<SecretString>,
    /// First token of every subject.
    pub root: String,
    pub provision: Provision,
    /// A connection that is half open is noticed after about three of these.
    pub ping_interval_ms: Millis,
    pub request_timeout_ms: Millis,
    /// After this a publish counts as unknown: it may have been stored.
    pub publish_timeout_ms: Millis,
    /// Published and not yet acknowledged.
    pub publish_in_flight_max: Count,
    /// Where answers come in, for the server's permissions to keep others from reading. None: `_I.{user of the URL}`.
    pub inbox_prefix: Option<String>,
    pub limits: TopologyLimits,
}

impl Default for NatsSettings {
    fn default() -> Self {
        Self {
            url: None,
            root: "signalbox".to_owned(),
            provision: Provision::Verify,
            ping_interval_ms: Millis::new(2_000),
            request_timeout_ms: Millis::new(5_000),
            publish_timeout_ms: Millis::new(5_000),
            publish_in_flight_max: Count::new(512),
            inbox_prefix: None,
            limits: TopologyLimits::default(),
        }
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

/// `[telemetry]`
#[derive(Clone, Deserialize)]
#[serde(default)]
pub struct TelemetrySettings {
    pub log_format: LogFormat,
    /// Which lines are written, as in `RUST_LOG`: `info,delivery=debug`. Added to what keeps libraries quiet.
    pub log: Option<String>,
    /// Where lines are written, at the end of what is there. None: to standard error.
    pub log_file: Option<PathBuf>,
    /// Collector that takes OTLP over HTTP, without the path of a signal: `http://localhost:4318`. None: nothing is
    /// sent, `/metrics` works all the same.
    pub otlp_endpoint: Option<String>,
    /// Where one signal goes instead, as a whole address: `http://localhost:4318/v1/traces`.
    pub otlp_traces_endpoint: Option<String>,
    pub otlp_metrics_endpoint: Option<String>,
    pub otlp_logs_endpoint: Option<String>,
    /// For a collector that does not take all three.
    pub traces_exporter: SignalExporter,
    pub metrics_exporter: SignalExporter,
    pub logs_exporter: SignalExporter,
    pub service_namespace: String,
    /// Share of traces that begin here and are sent, 0 to 1. A caller's decision is followed.
    pub trace_ratio: f64,
    pub metrics_interval_ms: Millis,
    /// Longest wait for the collector when the process stops.
    pub flush_timeout_ms: Millis,
}

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self {
            log_format: LogFormat::Text,
            log: None,
            log_file: None,
            otlp_endpoint: None,
            otlp_traces_endpoint: None,
            otlp_metrics_endpoint: None,
            otlp_logs_endpoint: None,
            traces_exporter: SignalExporter::Otlp,
            metrics_exporter: SignalExporter::Otlp,
            logs_exporter: SignalExporter::Otlp,
            service_namespace: "signalbox".to_owned(),
            trace_ratio: 1.0,
            metrics_interval_ms: Millis::new(15_000),
            flush_timeout_ms: Millis::new(3_000),
        }
    }
}

/// Whether a signal is sent to the collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalExporter {
    Otlp,
    None,
}

/// What a collector takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    Traces,
    Metrics,
    Logs,
}

impl TelemetrySettings {
    /// Where a signal is sent; none: it is not.
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

/// `[http]`: limits of every HTTP server. Where it listens is in the service's own section.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct HttpSettings {
    pub body_bytes_max: Bytes,
    /// All headers of a request together; more is answered with 431.
    pub header_bytes_max: Bytes,
    /// From the end of a request, or the beginning of the connection, to the end of the next request's headers: a
    /// connection may stay idle for as long.
    pub header_timeout_ms: Millis,
    /// How far a client may fall behind `answer_bytes_per_second_min`, and so the longest silence while a body arrives.
    pub body_timeout_ms: Millis,
    /// From the end of the headers to the beginning of the answer.
    pub request_timeout_ms: Millis,
    pub connections_max: Count,
    /// Requests at one time; more are answered with 503.
    pub requests_max: Count,
    /// Of one check of `/readyz`.
    pub check_timeout_ms: Millis,
    /// Of one address, or one /64 of IPv6; more are closed unread. None of the limits of addresses is for loopback.
    pub address_connections_max: Count,
    /// From one address, in the long run; more are answered with 429.
    pub address_requests_per_second: Count,
    /// From one address that was idle, at once.
    pub address_requests_burst: Count,
    /// With keys of one account, in the long run, in this process; more are answered with 429.
    pub account_requests_per_second: Count,
    /// With keys of one account that was idle, at once.
    pub account_requests_burst: Count,
    /// With keys of one account, under way at one time, until their answers are taken, and no more than a quarter of what the
    /// others leave of `requests_max`; more are answered with 429.
    pub account_requests_max: Count,
    /// Requests of one account that use the database at one time. No more than a quarter of `database.connections_max`
    /// counts. More wait for `account_wait_ms`.
    pub account_connections_max: Count,
    /// Until a request whose account uses all of these is answered with 429.
    pub account_wait_ms: Millis,
    /// Of answers that the clients of one account have not taken yet, and of bodies that they send; more requests are answered
    /// with 429. A body counts as long as it says that it is, from before it is read until it is answered.
    pub account_answer_bytes_max: Bytes,
    /// The same of all accounts together. One may have a quarter of what the others leave of it.
    pub answer_bytes_max: Bytes,
    /// A client that takes its answer, or sends its body, more slowly is given up once it is `body_timeout_ms` behind.
    pub answer_bytes_per_second_min: Bytes,
}

impl HttpSettings {
    /// With the share of one account that a pool of this size allows.
    pub(crate) fn with_pool(mut self, database: &DatabaseSettings) -> HttpSettings {
        let quarter = Count::new((database.connections_max.get() / 4).max(1));
        self.account_connections_max = self.account_connections_max.min(quarter);
        self
    }
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            body_bytes_max: Bytes::new(1024 * 1024),
            header_bytes_max: Bytes::new(16 * 1024),
            header_timeout_ms: Millis::new(30_000),
            body_timeout_ms: Millis::new(10_000),
            request_timeout_ms: Millis::new(30_000),
            connections_max: Count::new(1024),
            requests_max: Count::new(512),
            check_timeout_ms: Millis::new(1_000),
            address_connections_max: Count::new(256),
            address_requests_per_second: Count::new(2_000),
            address_requests_burst: Count::new(5_000),
            account_requests_per_second: Count::new(1_000),
            account_requests_burst: Count::new(5_000),
            account_requests_max: Count::new(128),
            account_connections_max: Count::new(4),
            account_wait_ms: Millis::new(2_000),
            account_answer_bytes_max: Bytes::new(32 * 1024 * 1024),
            answer_bytes_max: Bytes::new(128 * 1024 * 1024),
            answer_bytes_per_second_min: Bytes::new(16 * 1024),
        }
    }
}

/// `[process]`
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ProcessSettings {
    /// How long running work may take to end after a signal. Below the ten seconds after which containers are killed.
    pub stop_grace_ms: Millis,
    /// How long the start waits for Postgres and NATS to answer.
    pub dependencies_timeout_ms: Millis,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self {
            stop_grace_ms: Millis::new(8_000),
            dependencies_timeout_ms: Millis::new(30_000),
        }
    }
}

/// `[outbox]`: the relay of messages that were stored with the change that caused them.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct OutboxSettings {
    /// Messages waiting in memory, within 64 MiB; what does not fit is left to the sweep.
    pub queue_messages_max: Count,
    /// Messages published at one time.
    pub batch_messages_max: Count,
    pub sweep_interval_ms: Millis,
    /// Rows younger than this are still the business of the process that wrote them.
    pub sweep_age_ms: Millis,
    /// Rows that a sweep has claimed and not deleted by then are anybody's again.
    pub claim_timeout_ms: Millis,
    /// Until the broker is asked whether it still has a message that was not read. From then on again, up to six times as
    /// long apart.
    pub unread_look_ms: Millis,
    /// A message that was not read for this long is published again, whatever the broker says.
    pub unread_again_ms: Millis,
    /// A message that was not read is given up when it is this old, and becomes a dead letter. Longer than the streams
    /// keep it.
    pub unread_kept_hours: Hours,
}

impl Default for OutboxSettings {
    fn default() -> Self {
        Self {
            queue_messages_max: Count::new(16_384),
            batch_messages_max: Count::new(256),
            sweep_interval_ms: Millis::new(2_000),
            sweep_age_ms: Millis::new(5_000),
            claim_timeout_ms: Millis::new(15_000),
            unread_look_ms: Millis::new(10_000),
            unread_again_ms: Millis::new(60 * 60 * 1000),
            unread_kept_hours: Hours::new(14 * 24),
        }
    }
}

/// `[replica]`: the name under which this process holds leases.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ReplicaSettings {
    /// Peers take over what this process holds when it was not renewed for this long.
    pub lease_ms: Millis,
    pub renew_ms: Millis,
}

impl Default for ReplicaSettings {
    fn default() -> Self {
        Self {
            lease_ms: Millis::new(3_000),
            renew_ms: Millis::new(500),
        }
    }
}
