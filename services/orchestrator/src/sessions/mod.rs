//! Sessions: which generations there are and were. Opened by the resolver, run by delivery, read here.

pub mod http;
pub mod store;

use contracts::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::wire::{AgentName, moment, session_kind};

/// One generation of a session.
#[derive(Debug, Serialize, ToSchema)]
pub struct Session {
    pub id: Uuid,
    #[schema(schema_with = session_kind)]
    pub kind: String,
    #[schema(required)]
    pub task: Option<String>,
    /// Null for an orchestrator's session.
    #[schema(required)]
    pub agent: Option<AgentName>,
    pub generation: i32,
    pub key: String,
    pub state: SessionState,
    /// What may happen to it next: `idle`, `running`, `waiting` (for tools), `backoff` (for its next attempt).
    pub phase: String,
    #[schema(schema_with = moment)]
    pub opened_at: Timestamp,
    #[schema(required, value_type = Option<String>, format = DateTime)]
    pub closed_at: Option<Timestamp>,
    #[schema(required)]
    pub close_reason: Option<String>,
    /// Notifications that wait.
    pub queued: i32,
    /// Turns so far.
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
