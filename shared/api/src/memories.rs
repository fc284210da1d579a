//! What orchestrators remember, of a person or of the account.

use domain::{MemoryCategory, MemoryId, SessionId, Timestamp, decay};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::Text;

pub type MemoryText = Text<1, { decay::CONTENT_BYTES_MAX }>;
pub type MemoryKey = Text<1, { decay::KEY_CHARACTERS_MAX }>;
pub type MemoryWords = Text<1, { decay::QUERY_CHARACTERS_MAX }>;
pub type Repository = Text<1, 256>;

/// What is to be remembered. Of more than 200 memories the least relevant one goes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMemory {
    pub content: MemoryText,
    /// Default `general`.
    pub category: Option<MemoryCategory>,
    /// What has the same key is replaced; without one, what has the same content.
    pub key: Option<MemoryKey>,
    /// Of what sessions with this repository remember, and there required.
    #[serde(alias = "repoFullName")]
    pub repo: Option<Repository>,
}

/// What is looked for.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryQuery {
    pub category: Option<MemoryCategory>,
    /// Words, or their beginnings of three letters and more; any of them is enough.
    pub query: Option<MemoryWords>,
    /// Of what sessions with this repository remember, and there required.
    #[serde(alias = "repoFullName")]
    pub repo: Option<Repository>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Memories {
    /// The best first, all of them.
    pub items: Vec<Memory>,
    /// False: nothing has a word of the query, and these are the most relevant ones.
    pub matched: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    pub id: MemoryId,
    #[schemars(with = "MemoryCategory")]
    pub category: String,
    pub key: Option<String>,
    pub content: String,
    /// From 1 down to 0.1: it fades by a hundredth a day, and an agent that reads it freshens it.
    pub relevance: f64,
    /// How often agents have read it.
    pub access_count: i32,
    /// When it was written, or last read by an agent.
    pub touched_at: Timestamp,
    /// The session that wrote it; none: a person.
    pub session_id: Option<SessionId>,
    pub created_at: Timestamp,
}

/// What was remembered.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WrittenMemory {
    pub id: MemoryId,
    /// There was one with its key.
    pub replaced: bool,
    /// How many went for it.
    pub pruned: u64,
}
