//! Section `[delivery]` of the settings: every limit, units in the names.

use std::net::SocketAddr;

use domain::{breaker::BreakerLimits, progress::ProgressLimits};
use prompt::PastLimits;
use runtime::{
    section,
    settings::{Bytes, Count, LongMillis, Millis},
};

section! {
    #[derive(Debug)]
    pub struct DeliverySettings {
        /// `/healthz`, `/readyz`, `/metrics`.
        #[serde(deserialize_with = "runtime::settings::address")]
        pub listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8083)),
        /// Turns at once in this process. Each is one provider call; a turn that waits for tools does not count.
        pub turns_in_flight_max: Count = Count::new(256),
        /// Turns at once of one account in this process.
        pub turns_in_flight_account_max: Count = Count::new(128),
        /// Sessions that wait in this process; the sweep finds the others.
        pub waiting_sessions_max: Count = Count::new(100_000),
        /// Sessions claimed, and outcomes recorded, in one transaction.
        pub claim_batch_max: Count = Count::new(200),
        pub settle_batch_max: Count = Count::new(500),
        /// Attempts at a notification before it fails.
        pub attempts_max: Count = Count::new(5),
        /// Limits of one turn: provider calls answered with tool calls, and tool calls.
        pub rounds_max: Count = Count::new(24),
        pub calls_max: Count = Count::new(64),
        /// Pause before the next attempt, doubled with every failure.
        pub retry_delay_ms: Millis = Millis::new(1_000),
        pub retry_delay_ms_max: Millis = Millis::new(300_000),
        /// Pause after a failure that only the operator can fix, if its provider takes calls again meanwhile.
        pub pause_delay_ms: Millis = Millis::new(60_000),
        /// So many failures of a provider account without a success between, within the window, open its breaker.
        pub breaker_failures: Count = Count::new(5),
        pub breaker_window_ms: Millis = Millis::new(60_000),
        /// How long no call is made then, doubled each time that the probe fails; also after a failure that only the operator
        /// can fix, at its longest.
        pub breaker_open_ms: Millis = Millis::new(30_000),
        pub breaker_open_ms_max: Millis = Millis::new(900_000),
        /// How long one turn has the probe.
        pub breaker_probe_ms_max: Millis = Millis::new(120_000),
        /// Turns in a row without progress, that agents, timers or recovery cause for the same reason, after which a session is
        /// parked until a person acts: within the window, and at any pace.
        pub no_progress_turns_max: Count = Count::new(8),
        pub no_progress_window_ms: Millis = Millis::new(3_600_000),
        pub no_progress_self_turns_max: Count = Count::new(20),
        /// Interval of lookups in a provider's own record of a lost call.
        pub look_up_delay_ms: Millis = Millis::new(2_000),
        /// How long to look up a call before its outcome counts as unknown.
        pub look_up_ms_max: Millis = Millis::new(900_000),
        /// When to request a missing tool result again, and when to resume without it.
        pub tools_again_ms: Millis = Millis::new(30_000),
        pub tools_wait_ms_max: Millis = Millis::new(600_000),
        /// Interval of the sweep for neglected sessions.
        pub sweep_interval_ms: Millis = Millis::new(1_000),
        pub sweep_sessions_max: Count = Count::new(1_000),
        /// Messages of the thread in a prompt, and tasks in the coordinator's overview.
        pub thread_messages_max: Count = Count::new(6),
        pub overview_tasks_max: Count = Count::new(50),
        /// Limits of an assembled prompt: earlier turns, their bytes together, and those of each item and each reply.
        pub context_entries_max: Count = Count::new(50),
        pub context_bytes_max: Bytes = Bytes::new(131_072),
        pub context_body_bytes_max: Bytes = Bytes::new(4_096),
        pub context_reply_bytes_max: Bytes = Bytes::new(8_192),
        /// How long a run of `collect` items waits for another one after its newest, and at most after its first.
        pub collect_debounce_ms: Millis = Millis::new(3_000),
        pub collect_wait_ms_max: Millis = Millis::new(30_000),
        /// Limits of a run: items, and bytes of their bodies.
        pub collect_items_max: Count = Count::new(20),
        pub collect_bytes_max: Bytes = Bytes::new(65_536),
        /// When to look again at a session that a hold keeps; earlier if the hold ends earlier.
        pub hold_look_ms: Millis = Millis::new(600_000),
        /// Limits of what one call gives to a turn in progress: items with mode `inject`, and bytes of their bodies.
        pub inject_items_max: Count = Count::new(10),
        pub inject_bytes_max: Bytes = Bytes::new(16_384),
        /// How long to ask a provider whether a stopped call of an agent with effects of its own has ended.
        pub stop_confirm_ms_max: Millis = Millis::new(30_000),
        /// How long a notification may wait in its queue before it fails.
        pub queue_age_ms_max: LongMillis = LongMillis::new(604_800_000),
        /// How long an orderly stop waits for calls in flight.
        pub drain_ms: Millis = Millis::new(10_000),
    }
}

impl DeliverySettings {
    pub fn breaker_limits(&self) -> BreakerLimits {
        BreakerLimits {
            failures: self.breaker_failures.i32(),
            window: self.breaker_window_ms.duration(),
            open: self.breaker_open_ms.duration(),
            open_max: self.breaker_open_ms_max.duration(),
            probe_max: self.breaker_probe_ms_max.duration(),
        }
    }

    pub fn past_limits(&self) -> PastLimits {
        PastLimits {
            entries_max: self.context_entries_max.usize(),
            bytes_max: self.context_bytes_max.usize(),
            body_bytes_max: self.context_body_bytes_max.usize(),
            reply_bytes_max: self.context_reply_bytes_max.usize(),
        }
    }

    pub fn progress_limits(&self) -> ProgressLimits {
        ProgressLimits {
            turns_max: self.no_progress_turns_max.i32(),
            window: self.no_progress_window_ms.duration(),
            self_turns_max: self.no_progress_self_turns_max.i32(),
        }
    }
}
