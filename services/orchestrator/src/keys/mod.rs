//! API keys of an account. The form of a key and its digest are `domain::api_key`; a key is shown once, in the answer
//! that makes it, and nowhere else, not even in that answer given again.

pub mod http;
pub mod store;

use contracts::Timestamp;
use domain::KeyRole;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::wire::{key_role, moment};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// Stands as the author of what is done with the key.
    pub name: String,
    /// `admin`: everything in the account. `member`: reads, tasks, messages, notifications. `service`: reads, messages,
    /// notifications. `publisher`: publishes notifications and reads what became of its own, as a CI or a webhook does.
    /// `gateway`: the tool-gateway's `/agent/*` and nothing here.
    #[schema(schema_with = key_role)]
    pub role: KeyRole,
    /// From then on the key is worth nothing. Without it, a key is good until it is revoked.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// For `gateway` only: an agent, by id or slug. The key opens that agent's sessions and no others.
    pub agent: Option<String>,
}

#[derive(Debug, Serialize, ToSchema, FromQueryResult)]
pub struct Key {
    pub id: String,
    pub name: String,
    #[schema(schema_with = key_role)]
    pub role: String,
    #[serde(with = "rfc3339")]
    #[schema(schema_with = moment)]
    pub created_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    #[schema(required, value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<OffsetDateTime>,
    /// Whose sessions it opens: a gateway's key without it opens everybody's.
    #[schema(required)]
    pub agent_id: Option<Uuid>,
}

/// A key that was just made.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedKey {
    #[serde(flatten)]
    pub public: Key,
    /// Shown this once; null when the answer is given again for an `Idempotency-Key`.
    #[schema(required)]
    pub key: Option<String>,
}
