//! Sessions: which generations there are and were. Opened by the resolver, run by delivery, read here.

pub mod http;
pub mod store;

use sea_orm::{ColIdx, FromQueryResult, QueryResult, TryGetError, TryGetable};
use serde::Serialize;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::wire::{AgentName, moment, session_kind};

/// One generation of a session.
#[derive(Debug, Serialize, ToSchema, FromQueryResult)]
pub struct Session {
    pub id: Uuid,
    #[schema(schema_with = session_kind)]
    pub kind: String,
    #[schema(required)]
    pub task: Option<String>,
    /// Null for an orchestrator's session.
    #[schema(required)]
    #[sea_orm(nested(prefix = "agent_"))]
    pub agent: Option<AgentName>,
    pub generation: i32,
    pub key: String,
    #[sea_orm(from_alias = "closed_at")]
    pub state: SessionState,
    /// What may happen to it next: `idle`, `running`, `waiting` (for tools), `backoff` (for its next attempt).
    pub phase: String,
    #[serde(with = "rfc3339")]
    #[schema(schema_with = moment)]
    pub opened_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    #[schema(required, value_type = Option<String>, format = DateTime)]
    pub closed_at: Option<OffsetDateTime>,
    #[schema(required)]
    pub close_reason: Option<String>,
    /// Notifications that wait.
    pub queued: i32,
    /// Turns so far.
    #[sea_orm(from_alias = "turn_count")]
    pub turns: i64,
    #[schema(required)]
    pub active_turn_id: Option<Uuid>,
    /// Its provider was seen to run another session than the key says: which. Null as long as nothing of the kind was seen.
    #[schema(required)]
    pub mismatch: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    Active,
    Closed,
}

impl TryGetable for SessionState {
    fn try_get_by<I: ColIdx>(row: &QueryResult, closed_at: I) -> Result<Self, TryGetError> {
        Ok(match Option::<OffsetDateTime>::try_get_by(row, closed_at)? {
            None => SessionState::Active,
            Some(_) => SessionState::Closed,
        })
    }
}
