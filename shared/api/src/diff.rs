//! The difference between two turns.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// What differs between two turns: between the one of the path (before) and the one of `with` (after).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    pub turn: Uuid,
    pub with: Uuid,
    /// In the order in which a model reads them.
    pub layers: Vec<LayerDiff>,
    /// Where the context came from; null if from the same source.
    pub context: Option<Change>,
    /// The tools that were offered; null if they are the same.
    pub tools: Option<ToolsDiff>,
    pub provider: Option<Change>,
    pub usage: Option<Change>,
    /// Lines of the texts' differences that are not shown.
    pub lines_left_out: usize,
}

/// `instructions`, `context` (earlier turns in an assembled prompt), `input`, `notes`, `results` (of tools) or `reply`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LayerDiff {
    pub layer: String,
    pub state: DiffState,
    pub bytes_before: usize,
    pub bytes_after: usize,
    /// With `text=true`, of a layer that differs: a unified diff.
    pub diff: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffState {
    Same,
    Changed,
    /// The turn before has nothing of it.
    Added,
    /// The turn after has nothing of it.
    Removed,
}

impl DiffState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Changed => "changed",
            Self::Added => "added",
            Self::Removed => "removed",
        }
    }
}

/// Two values.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    pub before: Value,
    pub after: Value,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ToolsDiff {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    /// Tools of the same names have other schemas.
    pub schemas_changed: bool,
}
