//! API keys of an account. A key is shown once, in the answer that makes it, and nowhere else, not even in that answer given
//! again.

use contracts::Timestamp;
use domain::{AgentRef, KeyRole};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, serde::rfc3339};
use uuid::Uuid;

use crate::text::ActorName;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Stands as the author of what is done with the key. A name that looks like Signalbox's own is refused.
    pub name: ActorName,
    /// `admin`: everything in the account. `member`: reads, tasks, messages, notifications. `service`: reads, messages,
    /// notifications. `publisher`: publishes notifications and reads what became of its own, as a CI or a webhook does.
    /// `gateway`: the tool-gateway's `/agent/*` and nothing here.
    pub role: KeyRole,
    /// From then on the key is worth nothing; a moment that is still to come. Without it, a key is good until it is revoked.
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
    #[serde(with = "rfc3339")]
    #[schemars(with = "Timestamp")]
    pub created_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    #[schemars(with = "Option<Timestamp>")]
    pub expires_at: Option<OffsetDateTime>,
    /// Whose sessions it opens: a gateway's key without it opens everybody's.
    pub agent_id: Option<Uuid>,
}

/// A key that was just made.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CreatedKey {
    #[serde(flatten)]
    pub public: Key,
    /// Shown this once; null when the answer is given again for an `Idempotency-Key`.
    pub key: Option<String>,
}
