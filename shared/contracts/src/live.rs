//! Text as it is generated: core NATS, not stored, may be lost. The turn's reply is in Postgres.

use domain::{Fence, Generation, SessionId, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::message::Message;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LiveText {
    pub session_id: SessionId,
    pub generation: Generation,
    /// A higher fence took the turn over: text with a lower one is void.
    pub fence: Fence,
    pub turn_id: TurnId,
    /// The attempt of the turn that generated the text; text of an earlier attempt is void when a later one begins.
    pub attempt: i32,
    /// From 0, increasing by one for every piece of an attempt.
    pub sequence: u32,
    pub text: String,
}

impl LiveText {
    pub fn message_id(&self) -> String {
        format!("live:{}:{}:{}", self.turn_id, self.attempt, self.sequence)
    }
}

impl Message for LiveText {
    const KIND: &'static str = "live";
}
