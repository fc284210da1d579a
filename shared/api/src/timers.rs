//! Timers: what happens once, at a time.

use domain::{AgentId, NotificationId, SessionId, TimerId, TimerKind, TimerState, Timestamp};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Timer {
    pub id: TimerId,
    #[schemars(with = "TimerKind")]
    pub kind: String,
    #[schemars(with = "TimerState")]
    pub state: String,
    pub due_at: Timestamp,
    pub task: Option<String>,
    /// The session whose agent set it. When it fires, the notification goes to the open session of the same conversation.
    pub session_id: Option<SessionId>,
    pub agent_id: Option<AgentId>,
    /// What the agent wrote down for itself.
    pub note: String,
    /// How many timers in a row led to this one, each set in a turn that the one before began.
    pub chain: i32,
    pub created_at: Timestamp,
    /// The notification that it became.
    pub notification_id: Option<NotificationId>,
    /// When it fired or was cleared. Null while it waits.
    pub ended_at: Option<Timestamp>,
    /// Why it was cleared; while it waits, why it could not fire.
    pub reason: Option<String>,
}
