//! Events: facts for anyone who listens, on `{root}.event.{account}.{task}.{noun}.{fact}`. Past participles; adding a
//! field or a fact is free, changing one is not.

use domain::{
    AccountId, Actor, AgentId, CloseReason, Fence, Generation, MessageId, NotificationId, SessionId, SessionKind,
    TaskId, TaskStatus, TurnId, TurnState,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Timestamp, outgoing::Payload};

/// A reply longer than this is cut in the event; the whole text is in the turn.
pub const EVENT_REPLY_BYTES_MAX: usize = 64 * 1024;

/// The envelope of every event; `type` and `data` come from [`Event`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventMessage {
    pub account: AccountId,
    pub task: Option<TaskId>,
    pub at: Timestamp,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", content = "data")]
pub enum Event {
    #[serde(rename = "task.created")]
    TaskCreated(TaskCreated),
    #[serde(rename = "task.status_changed")]
    TaskStatusChanged(TaskStatusChanged),
    #[serde(rename = "message.posted")]
    MessagePosted(MessagePosted),
    #[serde(rename = "notification.refused")]
    NotificationRefused(NotificationEnded),
    #[serde(rename = "notification.cancelled")]
    NotificationCancelled(NotificationEnded),
    #[serde(rename = "notification.failed")]
    NotificationFailed(NotificationEnded),
    #[serde(rename = "session.opened")]
    SessionOpened(SessionOpened),
    #[serde(rename = "session.closed")]
    SessionEnded(SessionEnded),
    #[serde(rename = "turn.started")]
    TurnStarted(TurnStarted),
    #[serde(rename = "turn.finished")]
    TurnFinished(TurnFinished),
    #[serde(rename = "agent.removed")]
    AgentRemoved(AgentRemoved),
    /// A gateway ran another session than the key said.
    #[serde(rename = "provider.session_mismatched")]
    ProviderSessionMismatched(ProviderSessionMismatched),
    /// A message could not be processed by a service.
    #[serde(rename = "message.died")]
    MessageDied(MessageDied),
}

impl Event {
    /// `noun.fact`: the end of the subject.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TaskCreated(_) => "task.created",
            Self::TaskStatusChanged(_) => "task.status_changed",
            Self::MessagePosted(_) => "message.posted",
            Self::NotificationRefused(_) => "notification.refused",
            Self::NotificationCancelled(_) => "notification.cancelled",
            Self::NotificationFailed(_) => "notification.failed",
            Self::SessionOpened(_) => "session.opened",
            Self::SessionEnded(_) => "session.closed",
            Self::TurnStarted(_) => "turn.started",
            Self::TurnFinished(_) => "turn.finished",
            Self::AgentRemoved(_) => "agent.removed",
            Self::ProviderSessionMismatched(_) => "provider.session_mismatched",
            Self::MessageDied(_) => "message.died",
        }
    }
}

impl Payload for EventMessage {
    fn kind(&self) -> String {
        format!("signalbox.{}", self.event.kind())
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskCreated {
    pub title: String,
    pub status: TaskStatus,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatusChanged {
    pub from: TaskStatus,
    pub to: TaskStatus,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MessagePosted {
    pub message_id: MessageId,
    pub author: Actor,
    /// The turn whose reply it is, or whose tool call posted it.
    pub turn_id: Option<TurnId>,
}

/// `notification.refused`, `.cancelled`, `.failed`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NotificationEnded {
    /// Absent when the message was too broken to have one.
    pub id: Option<NotificationId>,
    pub agent: Option<String>,
    pub reason: String,
    pub detail: String,
    pub dead_letter_id: Option<uuid::Uuid>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionOpened {
    pub session_id: SessionId,
    pub session_key: String,
    pub kind: SessionKind,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionEnded {
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub reason: CloseReason,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TurnStarted {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    /// Of the claim under which it was written (B1). Absent from messages of older versions.
    #[serde(default)]
    pub fence: Fence,
    pub number: i64,
    pub agent_id: AgentId,
    pub notifications: Vec<NotificationId>,
    pub profile_version: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TurnFinished {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    /// Of the claim under which it was written (B1). Absent from messages of older versions.
    #[serde(default)]
    pub fence: Fence,
    pub number: i64,
    pub agent_id: AgentId,
    pub notifications: Vec<NotificationId>,
    /// How it ended: finished, failed, aborted or unknown.
    pub state: TurnState,
    /// The reply, at most 64 KiB of it; the turn has the whole.
    pub reply: Option<String>,
    pub reply_cut: bool,
    /// The agent said, by the tool `no_reply`, that there was nothing to do: recorded, not posted.
    pub no_reply: bool,
    /// The session had ended meanwhile: recorded, changes nothing.
    pub late: bool,
    pub attempts: i32,
    pub error: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AgentRemoved {
    pub agent_id: AgentId,
    pub slug: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProviderSessionMismatched {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub fence: Fence,
    pub detail: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MessageDied {
    pub dead_letter_id: uuid::Uuid,
    pub subject: String,
    pub reason: String,
    pub detail: String,
}
