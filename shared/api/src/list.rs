//! A page of a list.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Items_{T}")]
pub struct Items<T> {
    /// Fewer than requested if they are long, or if a filter excludes most of them; may be empty.
    pub items: Vec<T>,
    /// Ask again with `cursor` set to this; null on the last page.
    pub next_cursor: Option<String>,
}
