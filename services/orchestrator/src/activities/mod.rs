//! What happened to a task: made, moved, assigned, spoken about. Written with what it tells of; read here.

pub mod http;
pub mod store;

use sea_orm::FromQueryResult;
use serde::Serialize;
use serde_json::Value;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::wire::{Author, moment};

#[derive(Debug, Serialize, ToSchema, FromQueryResult)]
pub struct Activity {
    pub id: Uuid,
    /// `task.created`, `task.status_changed`, `task.assigned`, `task.updated`, `message.posted` …
    pub kind: String,
    #[sea_orm(nested(prefix = "actor_"))]
    pub actor: Author,
    #[schema(value_type = Object)]
    pub detail: Value,
    #[serde(with = "rfc3339")]
    #[schema(schema_with = moment)]
    pub created_at: OffsetDateTime,
}
