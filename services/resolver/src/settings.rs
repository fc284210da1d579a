//! Section `[resolver]` of the settings: every limit, units in the names.

use std::net::SocketAddr;

use runtime::{
    section,
    settings::{Count, CountOrNone, Days, Millis},
};

section! {
    #[derive(Debug)]
    pub struct ResolverSettings {
        /// `/healthz`, `/readyz`, `/metrics`.
        #[serde(deserialize_with = "runtime::settings::address")]
        pub listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8082)),
        /// Partitions that this process reads at once. There are eight, shared evenly among the live resolvers.
        pub partitions_max: Count = Count::new(8),
        /// Notifications in one transaction.
        pub batch_messages_max: Count = Count::new(500),
        /// Hops (agents woken by agents) before a notification; more are refused (B5). The
        /// tool-gateway reads it too, for branches.
        pub hops_max: CountOrNone = domain::session::HOPS_MAX_DEFAULT,
        /// Notifications queued in one session; more are refused. The last tenth is reserved for people.
        pub queue_items_max: Count = Count::new(10_000),
        /// How often to check whether to claim or release a partition. Others take over a dead resolver's partitions within
        /// this interval; if its machine is gone, after its lease (`replica.lease_ms`) at the latest.
        pub claim_interval_ms: Millis = Millis::new(1_000),
        /// Pause after a transient failure; doubled with every failure.
        pub retry_delay_ms: Millis = Millis::new(50),
        pub retry_delay_ms_max: Millis = Millis::new(5_000),
        /// How long a closed session is kept, with its turns and notifications (S12). Not shorter than the notification
        /// stream keeps its messages: a message that is read again must find its stored result.
        pub closed_sessions_days: Days = Days::new(30),
        /// How long a refused notification is kept. Not shorter than the notification stream keeps its messages: a message
        /// that is read again must find its refusal.
        pub refused_days: Days = Days::new(30),
        /// How often the sweeps run.
        pub sweep_interval_ms: Millis = Millis::new(60_000),
        /// Sessions deleted in one transaction.
        pub sweep_sessions_max: Count = Count::new(500),
        /// Refused notifications deleted in one transaction.
        pub sweep_refused_max: Count = Count::new(5_000),
        /// Notifications that stay in the stream after they were read, for people to inspect, while the stream is less than
        /// half full.
        pub consumed_messages_kept: CountOrNone = CountOrNone::new(100_000),
    }
}
