//! Problems: the body of every error response.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A problem (RFC 9457). Programs read `code`, people read `detail`. It may have more members, which its code explains.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `urn:signalbox:problem:{code}`
    #[serde(default)]
    pub r#type: String,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub status: u16,
    #[serde(default)]
    pub code: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// `urn:signalbox:request:{id}`: the log has the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}
