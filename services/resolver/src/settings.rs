//! Section `[resolver]` of the settings: every limit, units in the names.

use std::net::SocketAddr;

use runtime::settings::{Count, CountOrNone, Days, Millis};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResolverSettings {
    /// `/healthz`, `/readyz`, `/metrics`.
    #[serde(deserialize_with = "runtime::settings::address")]
    pub listen: SocketAddr,
    /// Partitions that this process reads at once. There are eight, shared evenly among the live resolvers.
    pub partitions_max: Count,
    /// Notifications in one transaction.
    pub batch_messages_max: Count,
    /// Hops (agents woken by agents) before a notification; more are refused (B5).
    pub hops_max: CountOrNone,
    /// Notifications queued in one session; more are refused. The last tenth is reserved for people.
    pub queue_items_max: Count,
    /// How often to check whether to claim or release a partition. Others take over a dead resolver's partitions within
    /// this interval; if its machine is gone, after its lease (`replica.lease_ms`) at the latest.
    pub claim_interval_ms: Millis,
    /// Pause after a transient failure; doubled with every failure.
    pub retry_delay_ms: Millis,
    pub retry_delay_ms_max: Millis,
    /// How long a closed session is kept, with its turns and notifications (S12). Not shorter than the notification
    /// stream keeps its messages: a message that is read again must find its stored result.
    pub closed_sessions_days: Days,
    /// How long a refused notification is kept. Not shorter than the notification stream keeps its messages: a message
    /// that is read again must find its refusal.
    pub refused_days: Days,
    /// How often the sweeps run.
    pub sweep_interval_ms: Millis,
    /// Sessions deleted in one transaction.
    pub sweep_sessions_max: Count,
    /// Refused notifications deleted in one transaction.
    pub sweep_refused_max: Count,
    /// Notifications that stay in the stream after they were read, for people to inspect, while the stream is less than
    /// half full.
    pub consumed_messages_kept: CountOrNone,
}

impl Default for ResolverSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8082)),
            partitions_max: Count::new(8),
            batch_messages_max: Count::new(500),
            hops_max: CountOrNone::new(8),
            queue_items_max: Count::new(10_000),
            claim_interval_ms: Millis::new(1_000),
            retry_delay_ms: Millis::new(50),
            retry_delay_ms_max: Millis::new(5_000),
            closed_sessions_days: Days::new(30),
            refused_days: Days::new(30),
            sweep_interval_ms: Millis::new(60_000),
            sweep_sessions_max: Count::new(500),
            sweep_refused_max: Count::new(5_000),
            consumed_messages_kept: CountOrNone::new(100_000),
        }
    }
}
