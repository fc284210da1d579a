//! `[tool_gateway]`: every limit of this service, units in the names. Sizes that are part of the contract (arguments,
//! results, bodies) are constants in `contracts`, not settings.

use std::net::{Ipv4Addr, SocketAddr};

use domain::CountOrNone;
use runtime::{
    section,
    settings::{ArtifactBytes, Bytes, Count, Depth, Millis, Seconds},
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
        /// Branches of branches, down to this depth; delivery reads it too. At most 5.
        pub branch_depth_max: Depth = domain::branch::DEPTH_MAX_DEFAULT,
        /// Live branches of one session, and of one account.
        pub branches_live_session_max: Count = Count::new(5),
        pub branches_live_account_max: Count = Count::new(64),
        /// How long branches may take, unless their call says it.
        pub branch_deadline_s: Seconds = Seconds::new(3_600),
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

/// What limits branches, and the sessions that orchestrators open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BranchLimits {
    pub depth_max: i32,
    /// Live ones of a session, and of an account.
    pub live_session_max: i64,
    pub live_account_max: i64,
    /// How long they may take, unless their call says it.
    pub deadline_s: i64,
    pub hops_max: u16,
    /// Open sessions on the board of one orchestrator.
    pub children_open_max: i64,
}

impl ToolGatewaySettings {
    /// `hops_max`: of the resolver, which refuses what comes after more. `children_open_max`: of the orchestrator.
    pub(crate) fn branch_limits(&self, hops_max: CountOrNone, children_open_max: Count) -> BranchLimits {
        BranchLimits {
            depth_max: self.branch_depth_max.i32(),
            live_session_max: self.branches_live_session_max.get().into(),
            live_account_max: self.branches_live_account_max.get().into(),
            deadline_s: self.branch_deadline_s.i64(),
            hops_max: u16::try_from(hops_max.get()).unwrap_or(u16::MAX),
            children_open_max: children_open_max.get().into(),
        }
    }
}
