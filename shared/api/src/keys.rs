//! API keys of an account. A key is returned once, in the response that creates it, and not when that response is
//! repeated.

use domain::{AgentRef, KeyRole, Timestamp};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::text::ActorName;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// The author's name of everything done with the key. A name that resembles Signalbox's own is refused.
    pub name: ActorName,
    /// `admin`: everything in the account. `member`: reads, tasks, messages, notifications. `service`: reads, messages,
    /// notifications. `publisher`: publishes notifications and reads the state of its own, as a CI or a webhook does.
    /// `gateway`: the tool-gateway's `/agent/*` and nothing here.
    pub role: KeyRole,
    /// When the key expires; a time in the future. Without it, the key is valid until it is revoked.
    pub expires_at: Option<Timestamp>,
    /// For `gateway` only: an agent, by id or slug. The key opens that agent's sessions and no others.
    pub agent: Option<AgentRef>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Key {
    pub id: String,
    pub name: String,
    #[schemars(with = "KeyRole")]
    pub role: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    /// The agent whose sessions it opens. A gateway's key without one opens all sessions.
    pub agent_id: Option<Uuid>,
    /// The member whose own key it is; null for a key of the account.
    #[serde(default)]
    pub user_id: Option<String>,
}

/// A new key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CreatedKey {
    #[serde(flatten)]
    pub public: Key,
    /// Returned once; null when the response is repeated for an `Idempotency-Key`.
    pub key: Option<String>,
}
