//! What happened to a task: made, moved, assigned, spoken about. Written with what it tells of; read here.

pub mod http;
pub mod store;

use contracts::Timestamp;
use serde::Serialize;
use serde_json::Value;
use storage::entity;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::wire::{Author, moment};

#[derive(Debug, Serialize, ToSchema)]
pub struct Activity {
    pub id: Uuid,
    /// `task.created`, `task.status_changed`, `task.assigned`, `task.updated`, `message.posted` …
    pub kind: String,
    pub actor: Author,
    #[schema(value_type = Object)]
    pub detail: Value,
    #[schema(schema_with = moment)]
    pub created_at: Timestamp,
}

impl From<entity::activity::Model> for Activity {
    fn from(row: entity::activity::Model) -> Self {
        Activity {
            id: row.id,
            kind: row.kind,
            actor: Author {
                kind: row.actor_kind,
                id: row.actor_id,
                name: row.actor_name,
                via: None,
            },
            detail: row.detail,
            created_at: row.created_at.into(),
        }
    }
}
