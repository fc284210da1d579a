//! A tool call, for its caller and for the tool-gateway.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{columns::column, string_enum::string_enum};

/// The provider's name of one call inside a turn. Bounded, and never part of a subject.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct CallId(#[schemars(length(min = 1, max = 256))] pub String);

impl std::fmt::Display for CallId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
column!(CallId: plain String);

string_enum! {
    ToolCallState {
        Requested = "requested",
        Running = "running",
        Finished = "finished",
        /// It ran and failed, or its arguments were wrong: the agent is told.
        Failed = "failed",
        /// It was not allowed.
        Refused = "refused",
        /// It may or may not have run.
        Unknown = "unknown",
    }
}

impl ToolCallState {
    pub fn is_over(self) -> bool {
        match self {
            Self::Requested | Self::Running => false,
            Self::Finished | Self::Failed | Self::Refused | Self::Unknown => true,
        }
    }
}
