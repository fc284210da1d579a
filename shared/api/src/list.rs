//! A page of a list.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Items_{T}")]
pub struct Items<T> {
    /// Fewer than were asked for when they are long, or when a filter leaves most of them out; none is possible, too.
    pub items: Vec<T>,
    /// Ask again with `cursor` set to this; null when there is no more.
    pub next_cursor: Option<String>,
}
