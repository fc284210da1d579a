//! Sessions: one agent's continuous work, in generations.

use domain::{SessionKind, Timestamp};
use schemars::JsonSchema;
use sea_orm::{ColIdx, FromQueryResult, QueryResult, TryGetError, TryGetable};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::agents::AgentName;

/// One generation of a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Session {
    pub id: Uuid,
    #[schemars(with = "SessionKind")]
    pub kind: String,
    pub task: Option<String>,
    /// Null for an orchestrator's session.
    #[sea_orm(nested(prefix = "agent_"))]
    pub agent: Option<AgentName>,
    pub generation: i32,
    pub key: String,
    #[sea_orm(from_alias = "closed_at")]
    pub state: SessionState,
    /// Its phase: `idle`, `running`, `waiting` (for tools), `backoff` (until its next attempt).
    pub phase: String,
    pub opened_at: Timestamp,
    pub closed_at: Option<Timestamp>,
    pub close_reason: Option<String>,
    /// Queued notifications.
    pub queued: i32,
    /// Turns so far.
    #[sea_orm(from_alias = "turn_count")]
    pub turns: i64,
    pub active_turn_id: Option<Uuid>,
    /// The other session that its provider ran instead of the key's. Null if none was seen.
    pub mismatch: Option<String>,
}

/// Whether turns may start in it, by the row's close reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Active,
    Closed,
}

impl SessionState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Closed => "closed",
        }
    }
}

impl TryGetable for SessionState {
    fn try_get_by<I: ColIdx>(row: &QueryResult, closed_at: I) -> Result<Self, TryGetError> {
        Ok(match Option::<Timestamp>::try_get_by(row, closed_at)? {
            None => SessionState::Active,
            Some(_) => SessionState::Closed,
        })
    }
}
