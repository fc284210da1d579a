//! Section `[resolver]` of the settings: every limit, units in the names.

use std::{net::SocketAddr, time::Duration};

use runtime::settings::{Count, Millis};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `/healthz`, `/readyz`, `/metrics`.
    pub listen: SocketAddr,
    /// Partitions that this process reads at once. There are eight, shared evenly among the resolvers that are alive.
    pub partitions_max: Count,
    /// Notifications in one transaction.
    pub batch_messages_max: Count,
    /// Wake-ups of agents by agents behind a notification; more are refused (B5).
    pub hops_max: u16,
    /// How often to look whether a partition is to be taken or given up. So long, at most, it takes until others go on with
    /// a dead resolver's; where its machine is gone, too, until its lease (`replica.lease_ms`) is over.
    pub claim_interval_ms: Millis,
    /// Between tries of what failed for a reason that passes; doubled with every failure.
    pub retry_delay_ms: Millis,
    pub retry_delay_ms_max: Millis,
    /// How long a closed session is kept, with its turns and notifications (S12). Not shorter than the notification
    /// stream keeps its messages: reading one again finds what came of it.
    pub closed_sessions_days: Count,
    /// How long a refused notification is kept. Not shorter than the notification stream keeps its messages either:
    /// reading one again finds that it was refused.
    pub refused_days: Count,
    /// How often the sweeps run.
    pub sweep_interval_ms: Millis,
    /// Sessions removed in one transaction.
    pub sweep_sessions_max: Count,
    /// Refused notifications removed at a time.
    pub sweep_refused_max: Count,
    /// Notifications that stay in the stream after they were read, for people to look at, while it is less than half full.
    pub consumed_messages_kept: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8082)),
            partitions_max: Count::new(8),
            batch_messages_max: Count::new(500),
            hops_max: 8,
            claim_interval_ms: Millis::new(1_000),
            retry_delay_ms: Millis::new(50),
            retry_delay_ms_max: Millis::new(5_000),
            closed_sessions_days: Count::new(30),
            refused_days: Count::new(30),
            sweep_interval_ms: Millis::new(60_000),
            sweep_sessions_max: Count::new(500),
            sweep_refused_max: Count::new(5_000),
            consumed_messages_kept: 100_000,
        }
    }
}

impl Config {
    pub fn closed_sessions_kept(&self) -> Duration {
        days(self.closed_sessions_days)
    }

    pub fn refused_kept(&self) -> Duration {
        days(self.refused_days)
    }
}

fn days(days: Count) -> Duration {
    Duration::from_secs(u64::from(days.get()) * 24 * 60 * 60)
}
