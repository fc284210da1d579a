//! Turns: what an agent was told, what it did, what it said, what it cost. Written by delivery and the tool-gateway,
//! read here whole.

pub mod http;
pub mod store;

use sea_orm::FromQueryResult;
use serde::Serialize;
use serde_json::Value;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::wire::{moment, tool_call_state, turn_state};

/// One run of an agent in a session.
#[derive(Debug, Serialize, ToSchema, FromQueryResult)]
pub struct Turn {
    pub id: Uuid,
    pub session_id: Uuid,
    pub generation: i32,
    /// Place in its session, from 1.
    pub number: i64,
    #[schema(schema_with = turn_state)]
    pub state: String,
    /// Ids of the notifications that it answers.
    #[sea_orm(from_alias = "notification_ids")]
    pub notifications: Vec<String>,
    #[sea_orm(nested(prefix = "profile_"))]
    pub profile: Profile,
    /// As they were sent; null when they are no longer kept.
    #[schema(required)]
    #[sea_orm(skip)]
    pub instructions: Option<String>,
    pub input: String,
    #[schema(required)]
    pub reply: Option<String>,
    #[sea_orm(skip)]
    pub tool_calls: Vec<ToolCall>,
    /// How many further ones there are, where all would be too long: `/turns/{turn}/tool-calls` lists every one.
    #[serde(skip_serializing_if = "is_none")]
    #[schema(required = false)]
    #[sea_orm(skip)]
    pub tool_calls_left_out: usize,
    /// As the provider counted.
    #[schema(required, value_type = Option<Object>)]
    pub usage: Option<Value>,
    #[schema(required)]
    pub error: Option<String>,
    #[schema(required)]
    pub error_class: Option<String>,
    pub provider: String,
    /// The provider's name of its last response.
    #[schema(required)]
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
    #[schema(schema_with = moment)]
    pub started_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    #[schema(required, value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<OffsetDateTime>,
    /// What went into the prompt, from where, with size and hash.
    #[schema(value_type = Object)]
    pub manifest: Value,
}

/// Which instructions the agent had.
#[derive(Debug, Serialize, ToSchema, FromQueryResult)]
pub struct Profile {
    pub version: String,
    pub hash: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ToolCall {
    pub call_id: String,
    pub name: String,
    /// As JSON, when it is; else the text that the provider sent.
    #[schema(value_type = Object)]
    pub arguments: Value,
    #[schema(schema_with = tool_call_state)]
    pub state: String,
    /// What the agent read, as JSON when it is; null as long as there is none.
    #[schema(value_type = Object, required)]
    pub result: Option<Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_none(count: &usize) -> bool {
    *count == 0
}

impl From<store::CallRow> for ToolCall {
    fn from(row: store::CallRow) -> Self {
        ToolCall {
            call_id: row.call_id,
            name: row.name,
            arguments: as_json(row.arguments.unwrap_or_default()),
            state: row.state,
            result: row.result.map(as_json),
        }
    }
}

/// A provider that keeps its word sends JSON, and our tools do; what another sends is shown as it came.
fn as_json(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_json_when_they_can_be() {
        assert_eq!(as_json(r#"{"a": 1}"#.to_owned()), json!({"a": 1}));
        assert_eq!(as_json("{broken".to_owned()), json!("{broken"));
        assert_eq!(as_json(String::new()), json!(""));
    }
}
