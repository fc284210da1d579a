//! `[tool_gateway]`: every limit of this service, units in the names. Sizes that are part of the contract (arguments,
//! results, bodies) are constants in `contracts`, not settings.

use std::net::{Ipv4Addr, SocketAddr};

use runtime::settings::{Count, Millis};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct ToolGatewaySettings {
    /// `/agent/*`, `/healthz`, `/readyz`, `/metrics`.
    #[serde(deserialize_with = "runtime::settings::address")]
    pub listen: SocketAddr,
    /// Workers that take calls from the bus.
    pub loops: Count,
    pub batch_messages_max: Count,
    /// Sessions that one worker processes at once; it takes no further batch at this limit. Each uses a connection of
    /// the pool.
    pub sessions_in_flight_max: Count,
    /// Failed attempts after which a call becomes a dead letter.
    pub attempts_max: Count,
    pub retry_delay_ms: Millis,
    /// How long a call is postponed while Postgres is unavailable. Does not count as an attempt.
    pub postpone_delay_ms: Millis,
    /// Timeout of each statement of a tool. A tool that exceeds it fails, and the agent gets an error.
    pub statement_timeout_ms: Millis,
}

impl Default for ToolGatewaySettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)),
            loops: Count::new(2),
            batch_messages_max: Count::new(64),
            sessions_in_flight_max: Count::new(6),
            attempts_max: Count::new(20),
            retry_delay_ms: Millis::new(500),
            postpone_delay_ms: Millis::new(500),
            statement_timeout_ms: Millis::new(5_000),
        }
    }
}
