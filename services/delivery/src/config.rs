//! Section `[delivery]` of the settings: every limit, units in the names.

use std::{net::SocketAddr, time::Duration};

use serde::Deserialize;

use crate::{queue::dispatcher::LineLimits, turn::settle};

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `/healthz`, `/readyz`, `/metrics`.
    pub listen: SocketAddr,
    /// Turns at once in this process. Each is one call to a provider; a turn that waits for tools counts for nothing.
    pub turns_in_flight_max: usize,
    /// Of one account in this process.
    pub turns_in_flight_account_max: usize,
    /// Sessions that wait in this process; more are found by the sweep.
    pub waiting_sessions_max: usize,
    /// Sessions claimed, and outcomes written, in one transaction.
    pub claim_batch_max: usize,
    pub settle_batch_max: usize,
    /// Failed attempts at a notification, the last one included, before it is given up.
    pub attempts_max: i32,
    /// Provider calls answered with tool calls, and tool calls, in one turn.
    pub rounds_max: i32,
    pub calls_max: i32,
    /// Doubled with every failure.
    pub retry_delay_ms: u64,
    pub retry_delay_ms_max: u64,
    /// After a failure that only the operator can mend (a refused credential, an empty quota).
    pub pause_delay_ms: u64,
    /// Between two looks into a provider's own record of a lost call.
    pub look_up_delay_ms: u64,
    /// How long to look before the outcome counts as unknown.
    pub look_up_ms_max: u64,
    /// When to ask for a missing tool result again, and when to go on without it.
    pub tools_again_ms: i64,
    pub tools_wait_ms_max: i64,
    /// How often to look for sessions that nobody is seeing to.
    pub sweep_interval_ms: u64,
    pub sweep_sessions_max: i32,
    /// Messages of the thread in a prompt, and tasks in the coordinator's overview.
    pub thread_messages_max: i64,
    pub overview_tasks_max: i64,
    /// How long an orderly stop waits for calls in flight.
    pub drain_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8083)),
            turns_in_flight_max: 256,
            turns_in_flight_account_max: 128,
            waiting_sessions_max: 100_000,
            claim_batch_max: 200,
            settle_batch_max: 500,
            attempts_max: 5,
            rounds_max: 24,
            calls_max: 64,
            retry_delay_ms: 1_000,
            retry_delay_ms_max: 300_000,
            pause_delay_ms: 60_000,
            look_up_delay_ms: 2_000,
            look_up_ms_max: 900_000,
            tools_again_ms: 30_000,
            tools_wait_ms_max: 600_000,
            sweep_interval_ms: 1_000,
            sweep_sessions_max: 1_000,
            thread_messages_max: 6,
            overview_tasks_max: 50,
            drain_ms: 10_000,
        }
    }
}

impl Config {
    pub fn line(&self) -> LineLimits {
        LineLimits {
            in_flight_max: self.turns_in_flight_max,
            in_flight_account_max: self.turns_in_flight_account_max,
            waiting_max: self.waiting_sessions_max,
        }
    }

    pub fn settle(&self) -> settle::Limits {
        settle::Limits {
            attempts_max: self.attempts_max,
            rounds_max: self.rounds_max,
            calls_max: self.calls_max,
            retry_delay: Duration::from_millis(self.retry_delay_ms),
            retry_delay_max: Duration::from_millis(self.retry_delay_ms_max),
            pause_delay: Duration::from_millis(self.pause_delay_ms),
            look_up_delay: Duration::from_millis(self.look_up_delay_ms),
            look_up_max: Duration::from_millis(self.look_up_ms_max),
        }
    }
}
