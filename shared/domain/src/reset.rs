//! A reset: a person ends a session's generation, and the next one knows nothing of it. What is in flight is stopped first; until
//! then the request stands in the session's row, and the transaction that ends the turn carries it out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Actor, Timestamp, string_enum::string_enum};

string_enum! {
    /// What happens to the notifications that wait in a session that is reset. `keep`: they move to the next generation, in their
    /// order.
    ResetQueue { Keep = "keep", Cancel = "cancel" }
}

string_enum! {
    /// What happens to the notifications of the turn that a reset stops. `requeue`: they are first in the next generation, whose
    /// agent is told that a turn on them was stopped.
    ResetInFlight { Cancel = "cancel", Requeue = "requeue" }
}

/// A reset that waits for the end of a turn. Stored with its session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ResetRequest {
    pub reason: String,
    pub by: Actor,
    pub queue: ResetQueue,
    pub in_flight: ResetInFlight,
    /// What is accepted later is no part of the queue that a reset cancels.
    pub at: Timestamp,
}

impl ResetRequest {
    /// Why the generation was closed, in words.
    pub fn detail(&self) -> String {
        format!("by {}: {}", self.by.called(), self.reason)
    }
}

/// A column of this type is JSON.
#[cfg(feature = "columns")]
impl sea_orm::TryGetableFromJson for ResetRequest {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_of_a_later_version_is_read() {
        let stored = json!({"reason": "it is stuck", "by": {"kind": "user", "id": "u-1", "name": "Ann"}, "queue": "keep",
            "in_flight": "requeue", "at": "2026-01-02T03:04:05Z", "fresh": true});
        let request: ResetRequest = serde_json::from_value(stored).unwrap();
        assert_eq!(request.in_flight, ResetInFlight::Requeue);
        assert_eq!(request.detail(), "by Ann: it is stuck");
    }
}
