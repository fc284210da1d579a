//! Activities: what happened to a task.

use domain::{Actor, Timestamp};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Activity {
    pub id: Uuid,
    /// `task.created`, `task.status_changed`, `task.assigned`, `task.updated`, `message.posted` …
    pub kind: String,
    #[sea_orm(nested(prefix = "actor_"))]
    pub actor: Actor,
    /// An object that depends on the kind.
    pub detail: Value,
    pub created_at: Timestamp,
}
