//! Notifications: the same door as NATS, over HTTP, and what became of each.
//!
//! What is accepted here is published for the resolver, which decides. Between the two a notification has no row yet;
//! the row of its acceptance answers "queued" for it, so that whoever was told 202 finds it at once.

pub mod http;
pub mod incoming;
pub mod store;

use domain::NotificationState;
use sea_orm::FromQueryResult;
use serde::Serialize;
use serde_json::Value;
use storage::{entity, outbox::WaitsFor};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::wire::{Author, moment, notification_state, queue_mode};

/// A notification and what became of it.
#[derive(Debug, Serialize, ToSchema, FromQueryResult)]
pub struct Notification {
    pub id: String,
    #[schema(required)]
    pub task: Option<String>,
    /// The agent's slug; what its publisher wrote, as long as that is all there is. Null for one that fanned out.
    #[schema(required)]
    pub agent: Option<String>,
    #[schema(required)]
    pub agent_id: Option<Uuid>,
    #[sea_orm(from_alias = "kind")]
    pub r#type: String,
    #[schema(schema_with = notification_state)]
    pub state: String,
    #[schema(required)]
    pub session_id: Option<Uuid>,
    #[schema(required)]
    pub session_key: Option<String>,
    #[schema(required)]
    pub turn_id: Option<Uuid>,
    pub attempts: i32,
    /// Why it was refused, failed or cancelled. Of one that is queued and was not read yet: `waits_for_broker` (NATS is away,
    /// or its stream is full; it is kept and sent as soon as it can be) or `waits_for_resolver`.
    #[schema(required)]
    pub reason: Option<String>,
    #[schema(required)]
    pub title: Option<String>,
    #[schema(required)]
    #[sea_orm(nested(prefix = "sender_"))]
    pub sender: Option<Author>,
    /// The thread message that it is about.
    #[schema(required)]
    pub message_id: Option<Uuid>,
    /// Id of the message or turn that caused it.
    #[schema(required)]
    pub cause: Option<String>,
    /// How many wake-ups of agents by agents lie behind it.
    pub hops: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, schema_with = queue_mode)]
    pub queue_mode: Option<String>,
    /// What it says; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub body: Option<String>,
    /// What its publisher added, unknown fields included; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, value_type = Object)]
    pub metadata: Option<Value>,
    /// One for several agents: the notifications that it became, one an agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    #[sea_orm(skip)]
    pub parts: Vec<Part>,
    #[serde(with = "rfc3339")]
    #[schema(schema_with = moment)]
    pub created_at: OffsetDateTime,
}

/// One agent's share of a notification for several.
#[derive(Debug, Serialize, ToSchema)]
pub struct Part {
    pub id: String,
    #[schema(required)]
    pub agent: Option<String>,
    #[schema(schema_with = notification_state)]
    pub state: String,
}

/// What may be posted, for the OpenAPI document alone: it is read by the rule of NATS ([`incoming`]), which keeps
/// unknown fields in `metadata`.
#[derive(Debug, ToSchema)]
pub struct NewNotification {
    /// Null or `-`: on no task.
    pub task: Option<String>,
    /// 1-128 printable characters, unique in the account; a UUID when absent.
    pub id: Option<String>,
    /// 1-64 characters of A-Z, a-z, 0-9, `_`, `-`, `.` and `:`.
    pub r#type: Option<String>,
    /// Id or slug. Without `agent` and `agents`, the task's assignees.
    pub agent: Option<String>,
    /// One notification each, its id followed by `:` and the agent's id. At most 64.
    pub agents: Option<Vec<String>>,
    /// At most 1,024 bytes.
    pub title: Option<String>,
    /// At most 256 KiB.
    pub body: String,
    /// The thread message that this is about.
    pub message_id: Option<Uuid>,
    /// The key itself when absent. A key for services may name another service, or a user on whose behalf it speaks, which
    /// is said; a person's key speaks for itself.
    pub sender: Option<Author>,
    #[schema(schema_with = queue_mode)]
    pub queue_mode: Option<String>,
    /// At most 64 KiB. `reopen: true` says that a person means to take a finished task up again.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<serde_json::Map<String, Value>>,
}

/// What was said yes to.
#[derive(Debug, Serialize, ToSchema)]
pub struct Accepted {
    pub id: String,
}

impl Notification {
    /// Accepted, and not yet written down by the resolver: why, as far as the outbox tells.
    pub fn accepted(row: entity::accepted_notification::Model, waits_for: Option<WaitsFor>) -> Notification {
        let reason = waits_for.map(|waits_for| match waits_for {
            WaitsFor::Broker => "waits_for_broker",
            WaitsFor::Reader => "waits_for_resolver",
        });
        Notification {
            id: row.id,
            task: row.task,
            agent: row.agent,
            agent_id: None,
            r#type: row.kind,
            state: NotificationState::Queued.to_string(),
            session_id: None,
            session_key: None,
            turn_id: None,
            attempts: 0,
            reason: reason.map(str::to_owned),
            title: None,
            sender: None,
            message_id: None,
            cause: None,
            hops: 0,
            queue_mode: None,
            body: None,
            metadata: None,
            parts: Vec::new(),
            created_at: row.created_at,
        }
    }

    /// What became of it, for whoever published it and may see no more: nothing of what it says, or of whom it is from.
    pub fn outcome(self) -> Notification {
        Notification {
            title: None,
            sender: None,
            message_id: None,
            cause: None,
            session_key: None,
            body: None,
            metadata: None,
            ..self
        }
    }

    /// One for several agents, told by what it became. `None` when it became nothing.
    pub fn of_parts(id: &str, parts: Vec<Notification>) -> Option<Notification> {
        let states: Vec<NotificationState> = parts
            .iter()
            .filter_map(|part| NotificationState::parse(&part.state))
            .collect();
        let state = state_of_parts(&states)?;
        let part = |part: &Notification| Part {
            id: part.id.clone(),
            agent: part.agent.clone(),
            state: part.state.clone(),
        };
        let list = parts.iter().map(part).collect();
        let attempts = parts.iter().map(|part| part.attempts).max().unwrap_or_default();
        let first = parts.into_iter().next()?;
        Some(Notification {
            id: id.to_owned(),
            agent: None,
            agent_id: None,
            state: state.to_string(),
            session_id: None,
            session_key: None,
            turn_id: None,
            attempts,
            reason: None,
            parts: list,
            ..first
        })
    }
}

/// Under way as long as one part is; then the worst that happened to any, since that is what somebody should look at.
fn state_of_parts(states: &[NotificationState]) -> Option<NotificationState> {
    use NotificationState::*;
    [Running, Queued, Failed, Refused, Delivered, Cancelled]
        .into_iter()
        .find(|state| states.contains(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_agents_share_one_state() {
        use NotificationState::*;
        let check = |states: &[NotificationState], expected| assert_eq!(state_of_parts(states), expected, "{states:?}");
        check(&[], None);
        check(&[Delivered, Delivered], Some(Delivered));
        check(&[Delivered, Cancelled], Some(Delivered));
        check(&[Delivered, Failed], Some(Failed));
        check(&[Failed, Queued], Some(Queued));
        check(&[Queued, Running], Some(Running));
    }
}
