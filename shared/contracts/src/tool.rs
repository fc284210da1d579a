//! `tool.requested` and `tool.finished`: a call from delivery to the tool-gateway and its one result.

use domain::{AccountId, AgentId, CallId, Fence, Generation, SessionId, TaskId, ToolCallState, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::outgoing::Payload;

/// Arguments longer than this are refused before they reach the broker.
pub const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
/// A result longer than this stays in Postgres; the message says so.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;

/// An agent asks for a tool. Counts once per (session, turn, call), however often it arrives.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolRequested {
    pub account: AccountId,
    pub task: Option<TaskId>,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub fence: Fence,
    pub turn_id: TurnId,
    pub agent_id: AgentId,
    pub call_id: CallId,
    /// Place of the call among the turn's calls, from 1.
    pub ordinal: i32,
    pub name: String,
    /// The arguments as the provider sent them; JSON if the provider keeps its word.
    pub arguments: String,
}

impl ToolRequested {
    pub fn message_id(&self) -> String {
        format!("tool.requested:{}:{}", self.turn_id, self.ordinal)
    }
}

impl Payload for ToolRequested {
    fn kind(&self) -> String {
        "signalbox.tool.requested".to_owned()
    }
}

/// The call has its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolFinished {
    pub account: AccountId,
    pub task: Option<TaskId>,
    pub session_id: SessionId,
    pub generation: Generation,
    pub fence: Fence,
    pub turn_id: TurnId,
    pub call_id: CallId,
    pub ordinal: i32,
    pub name: String,
    pub state: ToolCallState,
    /// What the agent will read; absent when it is longer than 64 KiB and stays in Postgres.
    pub result: Option<String>,
}

impl ToolFinished {
    pub fn message_id(&self) -> String {
        format!("tool.finished:{}:{}", self.turn_id, self.ordinal)
    }
}

impl Payload for ToolFinished {
    fn kind(&self) -> String {
        "signalbox.tool.finished".to_owned()
    }
}
