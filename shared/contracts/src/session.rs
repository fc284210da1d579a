//! `session.resolved`, `session.closed` and `session.stop_requested`: wake-ups between the resolver, the services that
//! close sessions and stop turns, and delivery. The state is in Postgres; a lost wake-up costs time, not work.

use domain::{AccountId, AgentId, CloseReason, Conversation, Generation, SessionId, StopKind, TaskId, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::message::Message;

/// A session has queued work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionResolved {
    pub account: AccountId,
    pub task: Option<TaskId>,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    /// Position in the session's queue of the newest item that this wake-up covers.
    pub position: i64,
}

impl SessionResolved {
    /// `task` is the newest item's, as its client spelled it.
    pub fn new(
        conversation: &Conversation,
        (session, generation): (SessionId, Generation),
        task: Option<&TaskId>,
        position: i64,
    ) -> SessionResolved {
        SessionResolved {
            account: conversation.account.clone(),
            task: task.cloned(),
            session_id: session,
            session_key: conversation.key(generation).to_string(),
            generation,
            agent_id: Some(conversation.agent),
            position,
        }
    }

    /// Id of the message: the same items give the same id.
    pub fn message_id(&self) -> String {
        format!("session.resolved:{}:{}", self.session_id, self.position)
    }
}

impl Message for SessionResolved {
    const KIND: &'static str = "session.resolved";
}

/// A generation ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionClosed {
    pub account: AccountId,
    pub task: Option<TaskId>,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub reason: CloseReason,
}

impl SessionClosed {
    pub fn message_id(&self) -> String {
        format!("session.closed:{}", self.session_id)
    }
}

impl Message for SessionClosed {
    const KIND: &'static str = "session.closed";
}

/// A turn is to end before its agent has finished. A hint: the request is in the session's row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionStopRequested {
    pub account: AccountId,
    pub task: Option<TaskId>,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub turn_id: TurnId,
    pub kind: StopKind,
}

impl SessionStopRequested {
    pub fn message_id(&self) -> String {
        format!(
            "session.stop_requested:{}:{}:{}",
            self.session_id, self.turn_id, self.kind
        )
    }
}

impl Message for SessionStopRequested {
    const KIND: &'static str = "session.stop_requested";
}
