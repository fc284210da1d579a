//! `[tool_gateway]`: every limit of this service, units in the names. Sizes that are part of the contract (arguments,
//! results, bodies) are constants in `contracts`, not settings.

use std::net::{Ipv4Addr, SocketAddr};

use runtime::{
    section,
    settings::{ArtifactBytes, Bytes, Count, Millis},
};

section! {
    #[derive(Debug)]
    pub struct ToolGatewaySettings {
        /// `/agent/*`, `/healthz`, `/readyz`, `/metrics`.
        #[serde(deserialize_with = "runtime::settings::address")]
        pub listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)),
        /// Workers that take calls from the bus.
        pub loops: Count = Count::new(2),
        pub batch_messages_max: Count = Count::new(64),
        /// Sessions that one worker processes at once; it takes no further batch at this limit. Each uses a connection of
        /// the pool.
        pub sessions_in_flight_max: Count = Count::new(6),
        /// Failed attempts after which a call becomes a dead letter.
        pub attempts_max: Count = Count::new(20),
        pub retry_delay_ms: Millis = Millis::new(500),
        /// How long a call is postponed while Postgres is unavailable. Does not count as an attempt.
        pub postpone_delay_ms: Millis = Millis::new(500),
        /// Timeout of each statement of a tool. A tool that exceeds it fails, and the agent gets an error.
        pub statement_timeout_ms: Millis = Millis::new(5_000),
        /// External calls in progress, in each process.
        pub external_calls_max: Count = Count::new(64),
        /// Those of one account: at most a quarter of what the others leave.
        pub external_calls_account_max: Count = Count::new(16),
        /// How long reading a file at an address may take, redirects included.
        pub fetch_timeout_ms: Millis = Millis::new(20_000),
        /// Bytes of one artifact: of an upload, of a file that is fetched, of an image that a model makes.
        pub artifact_bytes_max: ArtifactBytes = ArtifactBytes::new(15_000_000),
        /// Bytes of an account's artifacts, each content counted once.
        pub artifact_account_bytes_max: Bytes = Bytes::new(2 * 1024 * 1024 * 1024),
    }
}
