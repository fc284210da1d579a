//! Turns: what an agent was told, what it did, what it said, what it cost.

use contracts::Timestamp;
use domain::{ToolCallState, TurnState};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::{OffsetDateTime, serde::rfc3339};
use uuid::Uuid;

/// One run of an agent in a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Turn {
    pub id: Uuid,
    pub session_id: Uuid,
    pub generation: i32,
    /// Place in its session, from 1.
    pub number: i64,
    #[schemars(with = "TurnState")]
    pub state: String,
    /// Ids of the notifications that it answers.
    #[sea_orm(from_alias = "notification_ids")]
    pub notifications: Vec<String>,
    #[sea_orm(nested(prefix = "profile_"))]
    pub profile: Profile,
    /// As they were sent; null when they are no longer kept.
    #[sea_orm(skip)]
    pub instructions: Option<String>,
    pub input: String,
    pub reply: Option<String>,
    #[sea_orm(skip)]
    pub tool_calls: Vec<ToolCall>,
    /// How many further ones there are, where all would be too long: `/turns/{turn}/tool-calls` lists every one.
    #[serde(default, skip_serializing_if = "is_none")]
    #[sea_orm(skip)]
    pub tool_calls_left_out: usize,
    /// As the provider counted.
    pub usage: Option<Value>,
    pub error: Option<String>,
    pub error_class: Option<String>,
    pub provider: String,
    /// The provider's name of its last response.
    pub response_id: Option<String>,
    /// Calls to the provider, the one that is due included; one sent again because its answer was lost counts once.
    #[sea_orm(from_alias = "attempt")]
    pub provider_calls: i32,
    pub task_history_called: bool,
    /// The agent said that there was nothing to do: recorded, not posted.
    pub no_reply: bool,
    /// Its session had closed meanwhile: recorded, changes nothing.
    pub late: bool,
    #[serde(with = "rfc3339")]
    #[schemars(with = "Timestamp")]
    pub started_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    #[schemars(with = "Option<Timestamp>")]
    pub finished_at: Option<OffsetDateTime>,
    /// What went into the prompt, from where, with size and hash.
    pub manifest: Value,
}

/// Which instructions the agent had.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Profile {
    pub version: String,
    pub hash: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolCall {
    pub call_id: String,
    pub name: String,
    /// As JSON, when it is; else the text that the provider sent.
    pub arguments: Value,
    #[schemars(with = "ToolCallState")]
    pub state: String,
    /// What the agent read, as JSON when it is; null as long as there is none.
    pub result: Option<Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_none(count: &usize) -> bool {
    *count == 0
}
