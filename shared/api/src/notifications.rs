//! Notifications: reasons for an agent to act, and their states.

use contracts::notification::{AGENTS_MAX, BODY_BYTES_MAX, TITLE_BYTES_MAX};
use domain::{
    Actor, ActorKind, AgentRef, MessageId, NotificationId, NotificationState, QueueMode, Timestamp,
    notification::RouteStage,
};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{next::Next, text::Text};

/// The body of a new notification: the message of NATS plus `task`. It is parsed as over NATS, which keeps unknown
/// fields in `metadata`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("not" = {"required": ["agent", "agents"], "properties": {"agent": {"type": "string"}, "agents": {"type": "array"}}}))]
pub struct NewNotification {
    /// Null or `-`: without a task.
    #[schemars(regex(pattern = "^(-|[A-Za-z0-9][A-Za-z0-9_-]{0,63})$"))]
    pub task: Option<String>,
    /// Unique in the account; a UUID when absent.
    pub id: Option<NotificationId>,
    #[schemars(regex(pattern = "^[A-Za-z0-9_.:-]{1,64}$"))]
    pub r#type: Option<String>,
    /// Id or slug. Without `agent` and `agents`, the task's assignees. Not together with `agents`.
    pub agent: Option<AgentRef>,
    /// One notification each, its id followed by `:` and the agent's id.
    #[schemars(length(min = 1, max = AGENTS_MAX))]
    pub agents: Option<Vec<AgentRef>>,
    pub title: Option<Text<0, TITLE_BYTES_MAX>>,
    pub body: Text<0, BODY_BYTES_MAX>,
    /// The thread message that this is about.
    pub message_id: Option<MessageId>,
    /// The key itself if absent. A service's key may name another service, or a user on whose behalf it speaks, which
    /// is recorded; a person's key speaks for itself.
    pub sender: Option<NewSender>,
    pub queue_mode: Option<QueueMode>,
    /// At most 64 KiB. `reopen: true`: a person wants to reopen a finished task.
    pub metadata: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NewSender {
    pub kind: ActorKind,
    #[schemars(length(min = 1, max = 128))]
    pub id: String,
    pub name: Option<Text<0, 128>>,
}

/// An accepted notification.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Accepted {
    pub id: String,
}

/// A notification and its state.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Notification {
    pub id: String,
    pub task: Option<String>,
    /// The agent's slug; as the publisher wrote it until the agent is resolved. Null for a notification to several
    /// agents.
    pub agent: Option<String>,
    pub agent_id: Option<Uuid>,
    #[sea_orm(from_alias = "kind")]
    pub r#type: String,
    #[schemars(with = "NotificationState")]
    pub state: String,
    pub session_id: Option<Uuid>,
    pub session_key: Option<String>,
    pub turn_id: Option<Uuid>,
    pub attempts: i32,
    /// Why it was refused, failed or cancelled. For a queued one that is not read yet: `waits_for_broker` (NATS is
    /// unavailable, or its stream is full; it is stored and will be published) or `waits_for_resolver`.
    pub reason: Option<String>,
    pub title: Option<String>,
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Option<Actor>,
    /// The thread message that it is about.
    pub message_id: Option<Uuid>,
    /// Id of the message or turn that caused it.
    pub cause: Option<String>,
    /// The number of wake-ups of agents by agents that led to it.
    pub hops: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<QueueMode>")]
    pub queue_mode: Option<String>,
    /// Another one after each change, from 1.
    #[serde(default)]
    pub revision: i32,
    /// What it waits for. Absent when it has ended, and for one to several agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[sea_orm(skip)]
    pub why: Option<Next>,
    /// Its text; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The publisher's additional fields, unknown ones included; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
    /// Of a notification to several agents: the resulting notifications, one an agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[sea_orm(skip)]
    pub parts: Vec<Part>,
    pub created_at: Timestamp,
}

/// A step of a notification's route.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RouteStep {
    #[schemars(with = "RouteStage")]
    pub step: String,
    /// What came of the step.
    pub result: String,
    /// Why.
    pub because: String,
}

/// One agent's part of a notification to several.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    pub id: String,
    pub agent: Option<String>,
    #[schemars(with = "NotificationState")]
    pub state: String,
}
