//! Recoveries: what is done about tasks that do not move on.

use domain::{AgentId, RecoveryCause, RecoveryId, RecoveryState, Timestamp};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

/// What is done about a task that does not move on. The same facts are the same recovery.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Recovery {
    pub id: RecoveryId,
    /// As its client spelled it.
    pub task: String,
    /// The agent that would have to move it on.
    pub agent_id: Option<AgentId>,
    #[schemars(with = "RecoveryCause")]
    pub cause: String,
    /// `open`: its agent was told. `person`: a person has to see to it.
    #[schemars(with = "RecoveryState")]
    pub state: String,
    /// How often these facts were met.
    pub attempts: i32,
    pub detail: String,
    /// Why it was closed.
    pub reason: Option<String>,
    /// The notification that its agent got.
    pub notification_id: Option<String>,
    /// Since when nothing moves the task on.
    pub since: Timestamp,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

/// Says that a person has seen to it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dismiss {}
