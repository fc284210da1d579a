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
    /// Partitions that this process reads at once. There are eight, shared evenly among the resolvers that are alive.
    pub partitions_max: Count,
    /// Notifications in one transaction.
    pub batch_messages_max: Count,
    /// Wake-ups of agents by agents behind a notification; more are refused (B5).
    pub hops_max: CountOrNone,
    /// Notifications that wait in one session; more are refused. The last tenth is for people.
    pub queue_items_max: Count,
    /// How often to look whether a partition is to be taken or given up. So long, at most, it takes until others go on with
    /// a dead resolver's; where its machine is gone, too, until its lease (`replica.lease_ms`) is over.
    pub claim_interval_ms: Millis,
    /// Between tries of what failed for a reason that passes; doubled with every failure.
    pub retry_delay_ms: Millis,
    pub retry_delay_ms_max: Millis,
    /// How long a closed session is kept, with its turns and notifications (S12). Not shorter than the notification
    /// stream keeps its messages: reading one again finds what came of it.
    pub closed_sessions_days: Days,
    /// How long a refused notification is kept. Not shorter than the notification stream keeps its messages either:
    /// reading one again finds that it was refused.
    pub refused_days: Days,
    /// How often the sweeps run.
    pub sweep_interval_ms: Millis,
    /// Sessions removed in one transaction.
    pub sweep_sessions_max: Count,
    /// Refused notifications removed at a time.
    pub sweep_refused_max: Count,
    /// Notifications that stay in the stream after they were read, for people to look at, while it is less than half full.
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
