//! What moves a thing next, and what it waits for.

use domain::{NextCode, Timestamp, WaitsOn};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What moves it next.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Next {
    #[schemars(with = "NextCode")]
    pub code: String,
    /// What it waits for, with the code `waiting`.
    #[schemars(with = "Option<WaitsOn>")]
    pub on: Option<String>,
    /// The id of what it waits for.
    pub r#ref: Option<String>,
    /// The same for people.
    pub text: String,
    pub since: Option<Timestamp>,
    /// When that ends by itself.
    pub until: Option<Timestamp>,
}

impl From<domain::Next> for Next {
    fn from(next: domain::Next) -> Next {
        Next {
            code: next.code.to_string(),
            on: next.on.map(|on| on.to_string()),
            r#ref: next.of,
            text: next.text,
            since: next.since,
            until: next.until,
        }
    }
}
