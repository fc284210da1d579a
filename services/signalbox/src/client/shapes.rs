//! What the API answers, as far as a table shows it. Everything that may be absent is an option or has a default: the
//! API may grow, and an older server may lack something.

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
pub(crate) struct List {
    pub(super) items: Vec<Value>,
    #[serde(default)]
    pub(super) next_cursor: Option<String>,
}

/// RFC 9457.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    pub(super) code: String,
    pub(super) detail: String,
}

#[derive(Deserialize)]
pub(super) struct Accepted {
    pub(super) id: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Notification {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) task: Option<String>,
    /// Its slug, or what its publisher wrote; none for one that fanned out.
    #[serde(default)]
    pub(crate) agent: Option<String>,
    #[serde(default, rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) session_id: Option<String>,
    #[serde(default)]
    pub(crate) session_key: Option<String>,
    #[serde(default)]
    pub(crate) turn_id: Option<String>,
    #[serde(default)]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) parts: Vec<Part>,
    #[serde(default)]
    pub(crate) created_at: Option<String>,
}

/// One agent's share of a notification for several.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Part {
    pub(crate) id: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Agent {
    #[serde(default)]
    id: String,
    #[serde(default)]
    slug: Option<String>,
}

impl Agent {
    pub(crate) fn name(&self) -> &str {
        self.slug.as_deref().unwrap_or(&self.id)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Session {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) task: Option<String>,
    #[serde(default)]
    pub(crate) agent: Option<Agent>,
    #[serde(default)]
    pub(crate) generation: i64,
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) opened_at: Option<String>,
    #[serde(default)]
    pub(crate) close_reason: Option<String>,
    #[serde(default)]
    pub(crate) queued: i64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Turn {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) session_id: String,
    #[serde(default)]
    pub(crate) generation: i64,
    #[serde(default)]
    pub(crate) number: i64,
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) notifications: Vec<String>,
    #[serde(default)]
    pub(crate) profile: Option<Profile>,
    #[serde(default)]
    pub(crate) instructions: Option<String>,
    #[serde(default)]
    pub(crate) input: Option<String>,
    #[serde(default)]
    pub(crate) reply: Option<String>,
    #[serde(default)]
    pub(crate) tool_calls: Vec<ToolCall>,
    #[serde(default)]
    pub(crate) error: Option<Value>,
    #[serde(default)]
    pub(crate) started_at: Option<String>,
    #[serde(default)]
    pub(crate) finished_at: Option<String>,
}

impl Turn {
    /// What became of it, in words.
    pub(crate) fn said(&self) -> String {
        match (&self.reply, &self.error) {
            (Some(reply), _) if !reply.is_empty() => reply.clone(),
            (_, Some(Value::String(error))) => error.clone(),
            (_, Some(error)) if !error.is_null() => error.to_string(),
            (_, _) => String::new(),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Profile {
    #[serde(default)]
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) hash: String,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ToolCall {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) arguments: Value,
    #[serde(default)]
    pub(crate) result: Value,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DeadLetter {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) subject: String,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) detail: String,
    #[serde(default)]
    pub(crate) payload: Value,
    #[serde(default)]
    pub(crate) attempts: i64,
    #[serde(default)]
    pub(crate) created_at: Option<String>,
    #[serde(default)]
    pub(crate) redriven_at: Option<String>,
}

/// A value of the API as the shape that a table shows.
pub(crate) fn shape<T: serde::de::DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    use anyhow::Context;
    T::deserialize(value).context("the answer is not what the API promises")
}
