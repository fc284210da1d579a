//! The breaker of a provider: calls that would fail are not made.

use crate::string_enum::string_enum;

string_enum! {
    BreakerState {
        /// Calls are made.
        Closed = "closed",
        /// No call is made.
        Open = "open",
        /// One turn tries.
        Probing = "probing",
    }
}
