//! Section `[delivery]` of the settings: every limit, units in the names.

use std::net::SocketAddr;

use runtime::settings::{Count, Millis};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeliverySettings {
    /// `/healthz`, `/readyz`, `/metrics`.
    #[serde(deserialize_with = "runtime::settings::address")]
    pub listen: SocketAddr,
    /// Turns at once in this process. Each is one provider call; a turn that waits for tools does not count.
    pub turns_in_flight_max: Count,
    /// Turns at once of one account in this process.
    pub turns_in_flight_account_max: Count,
    /// Sessions that wait in this process; the sweep finds the others.
    pub waiting_sessions_max: Count,
    /// Sessions claimed, and outcomes recorded, in one transaction.
    pub claim_batch_max: Count,
    pub settle_batch_max: Count,
    /// Attempts at a notification before it fails.
    pub attempts_max: Count,
    /// Limits of one turn: provider calls answered with tool calls, and tool calls.
    pub rounds_max: Count,
    pub calls_max: Count,
    /// Pause before the next attempt, doubled with every failure.
    pub retry_delay_ms: Millis,
    pub retry_delay_ms_max: Millis,
    /// Pause after a failure that only the operator can fix (a refused credential, an empty quota).
    pub pause_delay_ms: Millis,
    /// Interval of lookups in a provider's own record of a lost call.
    pub look_up_delay_ms: Millis,
    /// How long to look up a call before its outcome counts as unknown.
    pub look_up_ms_max: Millis,
    /// When to request a missing tool result again, and when to resume without it.
    pub tools_again_ms: Millis,
    pub tools_wait_ms_max: Millis,
    /// Interval of the sweep for neglected sessions.
    pub sweep_interval_ms: Millis,
    pub sweep_sessions_max: Count,
    /// Messages of the thread in a prompt, and tasks in the coordinator's overview.
    pub thread_messages_max: Count,
    pub overview_tasks_max: Count,
    /// How long an orderly stop waits for calls in flight.
    pub drain_ms: Millis,
}

impl Default for DeliverySettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8083)),
            turns_in_flight_max: Count::new(256),
            turns_in_flight_account_max: Count::new(128),
            waiting_sessions_max: Count::new(100_000),
            claim_batch_max: Count::new(200),
            settle_batch_max: Count::new(500),
            attempts_max: Count::new(5),
            rounds_max: Count::new(24),
            calls_max: Count::new(64),
            retry_delay_ms: Millis::new(1_000),
            retry_delay_ms_max: Millis::new(300_000),
            pause_delay_ms: Millis::new(60_000),
            look_up_delay_ms: Millis::new(2_000),
            look_up_ms_max: Millis::new(900_000),
            tools_again_ms: Millis::new(30_000),
            tools_wait_ms_max: Millis::new(600_000),
            sweep_interval_ms: Millis::new(1_000),
            sweep_sessions_max: Count::new(1_000),
            thread_messages_max: Count::new(6),
            overview_tasks_max: Count::new(50),
            drain_ms: Millis::new(10_000),
        }
    }
}
