//! Two numbers that only grow. A *generation* is one incarnation of a session; a *fence* is the number of its lease. A
//! holder of an older number than the row's may record what happened and may change nothing else.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::columns::column;

/// 1, 2, 3 … of a session. Closed once, never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Generation(pub i32);

impl Generation {
    pub const FIRST: Generation = Generation(1);

    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a session's lease; every claim takes the next. 0: the session was never claimed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Fence(pub i64);

impl Fence {
    /// The fence of the next claim.
    pub fn next(self) -> Fence {
        Fence(self.0 + 1)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

column!(Generation: plain i32);
column!(Fence: plain i64);
