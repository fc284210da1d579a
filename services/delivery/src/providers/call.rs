//! What goes into a provider call and what comes out of it, in Signalbox's own words.
//! Not the wire: the JSON that each kind of provider speaks is made and read by its driver.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::failure::ProviderError;

/// One call to a model: the first of a turn, or the one that hands back tool results.
#[derive(Debug, Clone)]
pub struct ProviderCall {
    /// The turn this call belongs to.
    pub turn_id: Uuid,
    /// Numbers the calls of a turn. A call that is *sent again* because nobody knows what became of it keeps its
    /// number; a new call gets the next one. `{turn_id}:{attempt}` is the idempotency key.
    pub attempt: u32,
    /// Signalbox's session key; the driver turns it into the provider's.
    pub session_key: String,
    /// The profile, resent with every call.
    pub instructions: Option<Arc<str>>,
    /// What is new since the last call on this key.
    pub input: CallInput,
    /// Functions the model may call, under Signalbox's names.
    pub tools: Arc<[ToolDefinition]>,
    /// W3C trace context, passed on as a header.
    pub traceparent: Option<String>,
}

impl ProviderCall {
    /// `{turn_id}:{attempt}`: the idempotency key, and what recognises this call in a provider's history.
    pub fn delivery_id(&self) -> String {
        delivery_id(self.turn_id, self.attempt)
    }
}

/// The new part of the conversation.
#[derive(Debug, Clone)]
pub enum CallInput {
    /// A turn's first call.
    Message(String),
    /// All results of the calls in the previous answer, in its order.
    ToolResults {
        results: Vec<ToolOutput>,
        /// The answer that asked for the calls, where the provider continues a conversation by it.
        response_id: Option<String>,
        /// Something the agent is to read together with the results: an injected message, an interruption.
        note: Option<String>,
    },
    /// All of the turn so far, for a provider that is not continued ([`super::Continuation::Whole`]).
    Conversation(Vec<InputItem>),
}

/// One entry of a conversation that is sent in full.
#[derive(Debug, Clone)]
pub enum InputItem {
    User(String),
    Assistant(String),
    /// [`Reasoning::item`].
    Reasoning(String),
    Call(FunctionCall),
    Result(ToolOutput),
}

/// What a tool call came to.
#[derive(Debug, Clone)]
pub struct ToolOutput {
    pub call_id: String,
    /// Signalbox's name of the tool.
    pub name: String,
    /// The arguments as the model gave them. Some providers do not show the model which of its calls an output
    /// answers, so the driver repeats the beginning of them in the text.
    pub arguments: String,
    pub output: String,
}

/// A function the model may call.
#[derive(Debug, Clone)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, as it is sent: it is the same in thousands of calls.
    pub parameters: Box<RawValue>,
}

/// A completed call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProviderAnswer {
    pub response_id: Option<String>,
    /// The reply when `calls` is empty; otherwise what the agent said on the way. May be empty.
    pub text: String,
    /// Calls the agent wants made, in its order. Untrusted: names, ids and arguments are as the provider sent them.
    pub calls: Vec<FunctionCall>,
    /// What the model thought, sealed by the provider. Empty unless the provider is to have it back.
    pub reasoning: Vec<Reasoning>,
    /// `None` when the provider did not count, which is not the same as zero.
    pub usage: Option<Usage>,
    /// Why the answer stops short (`max_output_tokens`, …); `None` when it is whole.
    pub incomplete_reason: Option<String>,
}

/// A piece of a model's reasoning that only its provider can read. Without it the model loses its thread between the
/// rounds of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasoning {
    /// How many calls of the same answer stand before it.
    pub calls_before: usize,
    /// The item, as JSON text, unchanged.
    pub item: String,
}

/// A function call of the model. `call_id` is unique within one answer, not within a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionCall {
    pub call_id: String,
    /// Signalbox's name of the tool, or whatever the model made up.
    pub name: String,
    /// JSON text, unchecked.
    pub arguments: String,
}

/// Tokens, as the provider counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub reasoning_tokens: u64,
    pub total_tokens: u64,
}

/// A call that was sent and of which no answer was received ([`super::Sent::Maybe`]).
#[derive(Debug, Clone)]
pub struct LostCall {
    pub turn_id: Uuid,
    pub attempt: u32,
    pub session_key: String,
    /// From [`ProviderError::response_id`], when the stream had begun.
    pub response_id: Option<String>,
    /// How long ago the connection was lost. What is not in the history *yet* may still come.
    pub lost_for: Duration,
}

impl LostCall {
    pub fn delivery_id(&self) -> String {
        delivery_id(self.turn_id, self.attempt)
    }
}

/// What the provider's own record says about a lost call.
#[derive(Debug)]
pub enum Reconciled {
    /// It ran to its end; this is its answer.
    Ran(ProviderAnswer),
    /// It ran and failed on the provider's side.
    Failed(ProviderError),
    /// It never began: sending it again is no repetition.
    DidNotRun,
    /// It began, or may be about to; ask again later.
    StillRunning,
    /// The provider could not be asked; ask again later.
    Unreachable(ProviderError),
    /// It will not be known. The next turn has to tell the agent so.
    Unknown { reason: &'static str },
}

/// Did a turn run in the session that it was meant for?
#[derive(Debug)]
pub enum SessionCheck {
    Confirmed,
    /// The provider put it somewhere else: this generation has no thread, and somebody else's may have its text.
    RanElsewhere {
        asked: String,
        observed: Option<String>,
    },
    /// This provider has no record to look at, or it could not be read.
    NotChecked {
        reason: String,
    },
}

fn delivery_id(turn_id: Uuid, attempt: u32) -> String {
    format!("{turn_id}:{attempt}")
}
