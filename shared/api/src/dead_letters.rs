//! Dead letters: messages that could not be processed, and why.

use domain::Timestamp;
use schemars::JsonSchema;
use sea_orm::FromQueryResult;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A redrive takes no fields.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redrive {}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, FromQueryResult)]
pub struct DeadLetter {
    pub id: Uuid,
    /// The subject of the message.
    pub subject: String,
    /// One word, for programs.
    pub reason: String,
    /// One sentence, for people.
    pub detail: String,
    /// The message as it arrived; invalid UTF-8 is replaced.
    pub payload: String,
    pub attempts: i32,
    /// The service that wrote the letter.
    pub service: String,
    pub created_at: Timestamp,
    pub redriven_at: Option<Timestamp>,
    /// How often it was redriven.
    pub redrives: i32,
}
