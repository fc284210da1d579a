//! Replays: turns that are run again without effects.

use domain::{Actor, Matched, ReplayHistory, ReplayId, ReplaySpec, ReplayState, SessionId, Timestamp, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A replay that was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NewReplay {
    pub id: ReplayId,
}

/// A replay. Its turn has the prompt; `GET …/turns/{source_turn}/diff?with={turn}` compares the two.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Replay {
    pub id: ReplayId,
    pub state: ReplayState,
    /// The turn that is run again.
    pub source_turn: TurnId,
    pub session: SessionId,
    /// The newest turn of its session. Null: none has begun.
    pub turn: Option<TurnId>,
    /// What it changes.
    pub spec: ReplaySpec,
    /// What its model knew of the turns before. Null: its turn has not begun, or the source turn is gone.
    pub history: Option<ReplayHistory>,
    /// Its tool calls, in their order. None of them ran.
    pub calls: Vec<ReplayCall>,
    /// Recorded calls that answered none so far. Null: the source turn is gone.
    pub unused_calls: Option<usize>,
    pub reply: Option<String>,
    /// As the provider counted.
    pub usage: Option<Value>,
    pub error: Option<String>,
    pub created_by: Actor,
    pub created_at: Timestamp,
}

/// A tool call of a replay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReplayCall {
    pub name: String,
    /// How it was answered.
    pub matched: Matched,
}
