//! Artifacts: files of tasks.

use domain::{Actor, ArtifactId, ArtifactSource, MediaType, Timestamp};
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct Artifact {
    pub id: ArtifactId,
    pub task: String,
    pub name: String,
    /// As read from the content. Markup such as SVG and HTML is `text/plain`.
    #[schemars(with = "MediaType")]
    pub media_type: String,
    pub bytes: i32,
    /// Of the content, as hexadecimal digits.
    pub sha256: String,
    #[schemars(with = "ArtifactSource")]
    pub source: String,
    /// The address that it was fetched from; of a model, the id of the tool call.
    pub source_ref: Option<String>,
    #[sea_orm(nested(prefix = "created_by_"))]
    pub created_by: Actor,
    pub created_at: Timestamp,
}
