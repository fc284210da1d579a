//! Whom one may write to.

use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Entry {
    /// `person`, `orchestrator` or `agent`.
    pub kind: String,
    /// As mail takes it; of an agent, its slug.
    pub address: String,
    pub name: String,
    /// After an `@`.
    pub handle: Option<String>,
    pub avatar: Option<String>,
}
