//! Branches: parts of a turn's work that other sessions do at the same time.

use domain::{
    BranchContext, BranchId, BranchState, JoinMode, MessageId, NotificationId, SessionId, TaskStatus, Timestamp, TurnId,
};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{agents::AgentName, text::Text};

/// A branch.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Branch {
    pub id: BranchId,
    /// The branches of one call.
    pub group_id: Uuid,
    /// Its place among them, from 1.
    pub ordinal: i32,
    pub task: String,
    pub parent_session_id: SessionId,
    pub parent_turn_id: TurnId,
    /// The session that it runs in.
    pub session_id: SessionId,
    #[sea_orm(nested(prefix = "agent_"))]
    pub agent: AgentName,
    /// 1: its parent is no branch.
    pub depth: i32,
    pub label: Option<String>,
    pub request: String,
    #[schemars(with = "BranchContext")]
    pub context: String,
    #[schemars(with = "JoinMode")]
    pub join: String,
    #[sea_orm(nested(prefix = "base_"))]
    pub base: BranchBase,
    pub deadline_at: Timestamp,
    #[schemars(with = "BranchState")]
    pub state: String,
    /// Why it was cancelled, or its error.
    pub detail: Option<String>,
    pub result: Option<String>,
    /// Bytes of the result's end that were not kept.
    pub result_cut_bytes: i32,
    /// The notification of its parent that brings its result.
    pub joined_item: Option<NotificationId>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

/// What its parent knew when it made the branch: nothing younger reaches it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct BranchBase {
    pub title: String,
    #[schemars(with = "TaskStatus")]
    pub status: String,
    /// The version of the task's context.
    pub context_version: Option<i32>,
    /// The parent's last turn that had ended.
    pub last_turn: Option<TurnId>,
    /// Messages and activities of the task.
    pub messages: i32,
    pub activities: i32,
    /// The newest of the messages.
    pub newest_message: Option<MessageId>,
    /// Over all of it, in hexadecimal.
    pub sha256: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cancellation {
    /// For whoever reads the branch, and for its parent.
    pub reason: Option<Text<0, 1024>>,
}

/// Turns on a task, and what of each other they knew.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Graph {
    pub nodes: Vec<Node>,
    /// Those that end in one of the nodes.
    pub edges: Vec<Edge>,
    /// Ask again with `cursor` set to this; null on the last page.
    pub next_cursor: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    pub turn: TurnId,
    pub session: SessionId,
    pub branch: Option<BranchId>,
    /// Its number in its session, from 1.
    pub number: i64,
    /// Earlier turns and messages that its prompt held, as `turn/{id}` and `message/{id}`. What its thread at the provider holds besides
    /// are the turns that edges lead from.
    pub knew: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Edge {
    pub from: TurnId,
    pub to: TurnId,
    pub kind: EdgeKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// The turn before in the same session.
    Next,
    /// From the turn that made the branch to the branch's first turn.
    Spawned,
    /// From the branch's last turn to the turn that got its result.
    Folded,
}
