//! Turns: the input of an agent, its actions, its reply and its usage.

use domain::{Timestamp, ToolCallState, TurnContext, TurnState};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// One run of an agent in a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Turn {
    pub id: Uuid,
    pub session_id: Uuid,
    /// The branch that its session runs.
    #[serde(default)]
    pub branch_id: Option<Uuid>,
    /// The replay that its session runs.
    #[serde(default)]
    pub replay_id: Option<Uuid>,
    pub generation: i32,
    /// Position in its session, from 1.
    pub number: i64,
    #[schemars(with = "TurnState")]
    pub state: String,
    /// Ids of the notifications that it answers.
    #[sea_orm(from_alias = "notification_ids")]
    pub notifications: Vec<String>,
    #[sea_orm(nested(prefix = "profile_"))]
    pub profile: Profile,
    /// As they were sent; null when they are no longer stored.
    #[sea_orm(skip)]
    pub instructions: Option<String>,
    pub input: String,
    /// What the agent was given later, with the results of its tools.
    #[serde(default)]
    #[sea_orm(skip)]
    pub notes: Vec<Note>,
    pub reply: Option<String>,
    #[sea_orm(skip)]
    pub tool_calls: Vec<ToolCall>,
    /// The number of omitted tool calls if the list would be too long: `/turns/{turn}/tool-calls` has every one.
    #[serde(default, skip_serializing_if = "is_none")]
    #[sea_orm(skip)]
    pub tool_calls_left_out: usize,
    /// As the provider counted.
    pub usage: Option<Value>,
    pub error: Option<String>,
    pub error_class: Option<String>,
    pub provider: String,
    /// The provider's id of its last response.
    pub response_id: Option<String>,
    /// Calls to the provider, including the one that is due; a call that was repeated because its answer was lost
    /// counts once.
    #[sea_orm(from_alias = "attempt")]
    pub provider_calls: i32,
    pub task_history_called: bool,
    /// The agent called the tool `no_reply`: there was nothing to do. Recorded, not posted.
    pub no_reply: bool,
    /// Its session had closed meanwhile: recorded, changes nothing.
    pub late: bool,
    pub started_at: Timestamp,
    pub finished_at: Option<Timestamp>,
    /// Where its context came from. Null: a version of Signalbox that did not say so began it.
    #[serde(default)]
    pub context: Option<TurnContext>,
    /// The rule by which its generation took the place of the one before, with its figures. Null: it is not such a generation's
    /// first turn.
    #[serde(default)]
    pub rotated_because: Option<String>,
    /// The parts of the prompt, with source, size and hash; behind them those of notes and of results of tools.
    pub manifest: Value,
}

/// The agent's instructions.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Profile {
    pub version: String,
    pub hash: String,
}

/// Notifications with queue mode `inject`, as the agent read them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    /// How many answers with tool calls the agent had given before.
    pub round: usize,
    pub text: String,
    /// Their ids.
    pub notifications: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolCall {
    pub call_id: String,
    pub name: String,
    /// As JSON if it is valid; else the text that the provider sent.
    pub arguments: Value,
    /// Of a call that was answered in its tool's place, as each of a replay is: `refused` if the answer is an error, else `finished`.
    #[schemars(with = "ToolCallState")]
    pub state: String,
    /// The result that the agent read, as JSON if it is valid; null while there is none.
    pub result: Option<Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn is_none(count: &usize) -> bool {
    *count == 0
}
