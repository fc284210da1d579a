//! Events: facts for any listener, on `{root}.event.{account}.{task}.{noun}.{fact}`. Facts are past participles. Fields
//! and facts may be added and never changed.

use domain::{
    AccountId, Actor, AgentId, CloseReason, Fence, Gate, Generation, HoldId, HoldRunning, HoldScope, MessageId,
    NotificationId, QueueOp, SessionId, SessionKind, TaskId, TaskStatus, TurnId, TurnState,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Root, Timestamp,
    message::{Addressed, Hop, Message, Stream, User},
};

/// A longer reply is truncated in the event; the turn has the whole text.
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

/// An event a line: its fact, its payload, its publishers, and the service that acts on it, if one does. An event that
/// a service acts on is awaited.
macro_rules! events {
    ($($(#[$doc:meta])* $kind:literal $variant:ident($data:ident) from [$($publisher:ident),+] $(to $consumer:ident)?;)+) => {
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "type", content = "data")]
        pub enum Event {
            $($(#[$doc])* #[serde(rename = $kind)] $variant($data),)+
        }

        impl Event {
            /// `noun.fact`: the end of the subject.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $kind,)+
                }
            }
        }

        pub const EVENTS: &[Hop] = &[
            $(event($kind, &[$(User::$publisher),+], &[$(User::$consumer)?]),)+
        ];
    };
}

const fn event(kind: &'static str, publishers: &'static [User], consumers: &'static [User]) -> Hop {
    Hop {
        kind,
        stream: Some(Stream::Event),
        is_event: true,
        publishers,
        consumers,
        is_awaited: !consumers.is_empty(),
    }
}

events! {
    "task.created" TaskCreated(TaskCreated) from [Resolver, Orchestrator];
    "task.status_changed" TaskStatusChanged(TaskStatusChanged) from [ToolGateway, Orchestrator];
    "message.posted" MessagePosted(MessagePosted) from [Delivery, ToolGateway, Orchestrator];
    "notification.refused" NotificationRefused(NotificationEnded) from [Resolver];
    "notification.cancelled" NotificationCancelled(NotificationEnded) from [Delivery, ToolGateway, Orchestrator];
    "notification.failed" NotificationFailed(NotificationEnded) from [Delivery];
    "session.opened" SessionOpened(SessionOpened) from [Resolver, ToolGateway, Orchestrator];
    "session.closed" SessionEnded(SessionEnded) from [ToolGateway, Orchestrator];
    /// A gate keeps the queue from starting: see `gate`.
    "session.parked" SessionParked(SessionGated) from [Delivery];
    /// The gate was opened.
    "session.released" SessionReleased(SessionGated) from [Resolver, Delivery, ToolGateway, Orchestrator];
    /// A person paused something, or a hold ended.
    "hold.changed" HoldChanged(HoldChanged) from [Orchestrator];
    /// A person took the lease of a turn in progress from its holder.
    "session.lease_released" SessionLeaseReleased(SessionLeaseReleased) from [Orchestrator];
    /// Waiting notifications of a session were edited.
    "queue.changed" QueueChanged(QueueChanged) from [Orchestrator];
    "turn.started" TurnStarted(TurnStarted) from [Delivery];
    "turn.finished" TurnFinished(TurnFinished) from [Delivery] to Orchestrator;
    "agent.removed" AgentRemoved(AgentRemoved) from [Orchestrator];
    /// A gateway ran another session than the one of the key.
    "provider.session_mismatched" ProviderSessionMismatched(ProviderSessionMismatched) from [Delivery];
    /// A message could not be processed by a service.
    "message.died" MessageDied(MessageDied) from [Resolver, Delivery, ToolGateway, Orchestrator];
}

impl Message for EventMessage {
    const KIND: &'static str = "event";

    fn fact(&self) -> &'static str {
        self.event.kind()
    }
}

impl Addressed for EventMessage {
    fn about(&self) -> (&AccountId, Option<&TaskId>) {
        (&self.account, self.task.as_ref())
    }

    fn subject(&self, root: &Root) -> String {
        root.event(&self.account, self.task.as_ref(), self.event.kind())
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
    /// The turn of this reply, or of the tool call that posted it.
    pub turn_id: Option<TurnId>,
}

/// `notification.refused`, `.cancelled`, `.failed`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NotificationEnded {
    /// Absent if the message was too malformed to have one.
    pub id: Option<NotificationId>,
    pub agent: Option<String>,
    pub reason: String,
    pub detail: String,
    pub dead_letter_id: Option<uuid::Uuid>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HoldChanged {
    pub hold_id: HoldId,
    /// What it covers.
    pub scope: HoldScope,
    /// The id of what it covers, as it is compared.
    pub scope_id: String,
    /// What becomes of turns in progress.
    pub running: HoldRunning,
    pub until: Option<Timestamp>,
    /// Who made it.
    pub by: Actor,
    pub released: bool,
    /// The name of who released it. Absent if its time was over.
    pub released_by: Option<String>,
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

/// `session.parked` and `session.released`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionGated {
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub gate: Gate,
    /// Items that wait behind the gate.
    pub queued: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SessionLeaseReleased {
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub turn_id: Option<TurnId>,
    /// The replica of delivery that held it: what it still writes has no effect.
    pub holder: Option<uuid::Uuid>,
    /// The fence from now on.
    pub fence: Fence,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QueueChanged {
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    pub agent_id: Option<AgentId>,
    pub op: QueueOp,
    /// The notification. Absent for `order`.
    pub item: Option<NotificationId>,
    /// The revision of the queue from now on.
    pub revision: String,
    pub by: Actor,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TurnStarted {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub session_key: String,
    pub generation: Generation,
    /// The fence of the claim under which it was written (B1). Absent from messages of older versions.
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
    /// The fence of the claim under which it was written (B1). Absent from messages of older versions.
    #[serde(default)]
    pub fence: Fence,
    pub number: i64,
    pub agent_id: AgentId,
    pub notifications: Vec<NotificationId>,
    /// How it ended: finished, failed, aborted or unknown.
    pub state: TurnState,
    /// The reply, truncated to 64 KiB; the turn has the whole text.
    pub reply: Option<String>,
    pub reply_cut: bool,
    /// The agent called the tool `no_reply`: there was nothing to do. Recorded, not posted.
    pub no_reply: bool,
    /// The session had closed meanwhile: recorded, changes nothing.
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
