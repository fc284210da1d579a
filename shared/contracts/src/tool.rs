//! `tool.requested` and `tool.finished`: a call from delivery to the tool-gateway and its one result.

use domain::{AccountId, AgentId, CallId, Fence, Generation, SessionId, TaskId, ToolCallState, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::message::Message;

/// Longer arguments are refused before they reach the broker.
pub const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
/// A longer result stays in Postgres; the message says so.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;

/// Namespace of ids that are derived from their content.
const TOOL_CALLS: Uuid = Uuid::from_u128(0x51b0_ca11_0000_4000_8000_0000_0000_0001);

/// The id of a call's record: derived from (session, turn, call), so that a redelivery is the same call.
///
/// The ordinal is part of the id, since providers make call ids unique within one answer and not within a turn. A call
/// over HTTP has ordinal 0 and no turn: its idempotency key is valid for the whole session.
pub fn tool_call_id(session: SessionId, turn: Option<TurnId>, ordinal: i32, call: &CallId) -> Uuid {
    let turn = turn.map_or(Uuid::nil(), TurnId::uuid);
    Uuid::new_v5(&TOOL_CALLS, format!("{session}\n{turn}\n{ordinal}\n{call}").as_bytes())
}

/// An agent calls a tool. Counts once per (session, turn, call), however often it arrives.
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
    /// Position of the call among the turn's calls, from 1.
    pub ordinal: i32,
    pub name: String,
    /// The arguments as the provider sent them; usually JSON.
    pub arguments: String,
}

impl ToolRequested {
    pub fn message_id(&self) -> String {
        format!("tool.requested:{}:{}", self.turn_id, self.ordinal)
    }

    /// The id of the call's record.
    pub fn tool_call_id(&self) -> Uuid {
        tool_call_id(self.session_id, Some(self.turn_id), self.ordinal, &self.call_id)
    }
}

impl Message for ToolRequested {
    const KIND: &'static str = "tool.requested";
}

/// The result of a call.
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
    /// The text for the agent; absent if it is longer than 64 KiB and stays in Postgres.
    pub result: Option<String>,
}

impl ToolFinished {
    pub fn message_id(&self) -> String {
        format!("tool.finished:{}:{}", self.turn_id, self.ordinal)
    }
}

impl Message for ToolFinished {
    const KIND: &'static str = "tool.finished";
}

/// The question about a tool call has ended: the call runs, or is refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolApproved {
    pub account: AccountId,
    pub task: Option<TaskId>,
    pub session_id: SessionId,
    /// Id of the call's record.
    pub call: Uuid,
}

impl ToolApproved {
    pub fn message_id(&self) -> String {
        format!("tool.approved:{}", self.call)
    }
}

impl Message for ToolApproved {
    const KIND: &'static str = "tool.approved";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_one_id_and_shares_it_with_no_other() {
        let (session, turn) = (SessionId(Uuid::from_u128(1)), TurnId(Uuid::from_u128(2)));
        let id = |session, turn, ordinal, call: &str| tool_call_id(session, turn, ordinal, &CallId(call.to_owned()));
        let first = id(session, Some(turn), 1, "call_1");
        assert_eq!(first, id(session, Some(turn), 1, "call_1"));
        for other in [
            id(SessionId(Uuid::from_u128(3)), Some(turn), 1, "call_1"),
            id(session, Some(TurnId(Uuid::from_u128(3))), 1, "call_1"),
            id(session, None, 1, "call_1"),
            id(session, Some(turn), 2, "call_1"), // the same call id in the turn's next answer
            id(session, Some(turn), 1, "call_2"),
        ] {
            assert_ne!(first, other);
        }
        // Pinned: existing rows are found by it.
        assert_eq!(first.to_string(), "6bb882d7-0373-5930-aa0e-3d5c0da3a502");
    }
}
