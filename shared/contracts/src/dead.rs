//! A dead letter: a message that cannot be processed, with the data to repair and redrive it.

use domain::AccountId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Timestamp, message::Message};

/// A longer payload is truncated, and cannot be redriven from the copy.
pub const DEAD_PAYLOAD_BYTES_MAX: usize = 512 * 1024;

/// The message on `{root}.dead.{account}.{task}`, and the row behind `GET …/dead-letters`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetter {
    pub id: Uuid,
    /// Absent without an existing account: such letters belong to the operator.
    pub account: Option<AccountId>,
    /// The subject of the message.
    pub subject: String,
    /// One word, for programs: `malformed`, `unknown_agent`, `turn_failed` …
    pub reason: String,
    /// One sentence, for people: the error and its remedy.
    pub detail: String,
    /// The message as it arrived; invalid UTF-8 is replaced.
    pub payload: String,
    pub attempts: i32,
    pub created_at: Timestamp,
}

impl Message for DeadLetter {
    const KIND: &'static str = "dead";
}
