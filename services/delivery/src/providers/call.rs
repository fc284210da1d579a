//! The request and the answer of a provider call, in Signalbox's own types. The drivers convert them to and from each
//! kind of provider's JSON.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::failure::ProviderError;

/// One call to a model: the first of a turn, or one that hands back tool results.
#[derive(Debug, Clone)]
pub struct ProviderCall {
    /// The turn this call belongs to.
    pub turn_id: Uuid,
    /// Numbers the calls of a turn. A call that is *sent again* because its outcome is unknown keeps its number; a new
    /// call gets the next one. `{turn_id}:{attempt}` is the idempotency key.
    pub attempt: u32,
    /// Signalbox's name of the thread: the session key, or that of a later thread of the session. The driver converts it to
    /// the provider's.
    pub session_key: String,
    /// The answer from which it goes on, where the provider finds a thread by it.
    pub after: Option<String>,
    /// The instructions, resent with every call.
    pub instructions: Option<Arc<str>>,
    /// The new input since the last call on this key.
    pub input: CallInput,
    /// Functions the model may call, under Signalbox's names.
    pub tools: Arc<[ToolDefinition]>,
    /// W3C trace context, passed on as a header.
    pub traceparent: Option<String>,
}

impl ProviderCall {
    /// `{turn_id}:{attempt}`: the idempotency key, and the text that identifies this call in a provider's history.
    pub fn delivery_id(&self) -> String {
        format!("{}:{}", self.turn_id, self.attempt)
    }

    /// This call, after it was sent and its answer was not received.
    pub fn lost(&self, response_id: Option<String>, lost_for: Duration) -> LostCall {
        LostCall {
            delivery_id: self.delivery_id(),
            session_key: self.session_key.clone(),
            response_id,
            lost_for,
        }
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
        /// Text for the agent next to the results: an injected message, an interruption.
        note: Option<String>,
    },
    /// The whole turn so far, and what the turn knows of those before it: for a provider that keeps no conversation
    /// ([`super::Continuation::Whole`]), and for the first call in a new thread.
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

impl InputItem {
    /// Of its texts.
    pub(super) fn bytes(&self) -> usize {
        match self {
            InputItem::User(text) | InputItem::Assistant(text) | InputItem::Reasoning(text) => text.len(),
            InputItem::Call(call) => call.arguments.len(),
            InputItem::Result(result) => result.output.len(),
        }
    }
}

/// The result of a tool call.
#[derive(Debug, Clone)]
pub struct ToolOutput {
    pub call_id: String,
    /// Signalbox's name of the tool.
    pub name: String,
    /// The arguments as the model gave them. Some providers do not show the model which call an output answers, so the
    /// driver repeats the beginning of the arguments in the text.
    pub arguments: String,
    pub output: String,
}

/// A function the model may call.
#[derive(Debug, Clone)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, serialised once: it is the same in thousands of calls.
    pub parameters: Box<RawValue>,
}

/// A completed call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProviderAnswer {
    pub response_id: Option<String>,
    /// The reply when `calls` is empty; otherwise the agent's interim text. May be empty.
    pub text: String,
    /// The tool calls, in the agent's order. Untrusted: names, ids and arguments are as the provider sent them.
    pub calls: Vec<FunctionCall>,
    /// The model's reasoning, encrypted by the provider. Empty unless it must be sent back.
    pub reasoning: Vec<Reasoning>,
    /// `None` when the provider did not count, which is not zero.
    pub usage: Option<Usage>,
    /// Why the answer is incomplete (`max_output_tokens`, …); `None` when it is complete.
    pub incomplete_reason: Option<String>,
    /// The response from which it went on, as it says itself.
    pub previous: Previous,
}

/// What an answer says of the response before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Previous {
    #[default]
    NotSaid,
    None,
    Id(String),
}

impl Previous {
    /// Whether it denies that the answer went on from `after`.
    pub fn denies(&self, after: &str) -> bool {
        match self {
            Previous::NotSaid => false,
            Previous::None => true,
            Previous::Id(id) => id != after,
        }
    }
}

/// A piece of a model's reasoning that only its provider can read. Without it the model loses context between the
/// rounds of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasoning {
    /// Number of calls before it in the same answer.
    pub calls_before: usize,
    /// The item, as JSON text, unchanged.
    pub item: String,
}

/// A function call of the model. `call_id` is unique within one answer, not within a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionCall {
    pub call_id: String,
    /// Signalbox's name of the tool, or a name that the model made up.
    pub name: String,
    /// JSON text, unchecked.
    pub arguments: String,
}

/// Tokens, as the provider counts them. A turn's are the sums of its answers'; stored with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub reasoning_tokens: u64,
    pub total_tokens: u64,
}

impl Usage {
    pub fn plus(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
            total_tokens: self.total_tokens.saturating_add(other.total_tokens),
        }
    }
}

/// A call that was sent and whose answer was not received ([`super::Sent::Maybe`]).
#[derive(Debug, Clone)]
pub struct LostCall {
    /// [`ProviderCall::delivery_id`].
    pub delivery_id: String,
    pub session_key: String,
    /// From [`ProviderError::response_id`], when the stream had begun.
    pub response_id: Option<String>,
    /// Time since the connection was lost. A call may enter the history with a delay.
    pub lost_for: Duration,
}

/// The outcome of a lost call, by the provider's own record.
#[derive(Debug)]
pub enum Reconciled {
    /// The call completed with this answer.
    Ran(ProviderAnswer),
    /// The call ran and failed at the provider.
    Failed(ProviderError),
    /// The call never began: sending it again is no repetition.
    DidNotRun,
    /// The call began, or may begin; ask again later.
    StillRunning,
    /// The provider could not be asked; ask again later.
    Unreachable(ProviderError),
    /// The outcome stays unknown. The next turn must tell the agent so.
    Unknown { reason: &'static str },
}

/// Whether the provider still has a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadCheck {
    There,
    Gone,
    /// The provider has no readable record, or could not be asked: the call will show.
    NotChecked,
}

/// Whether a turn ran in the intended session.
#[derive(Debug)]
pub enum SessionCheck {
    Confirmed,
    /// The provider ran the turn in another session: this generation has no thread, and another conversation may hold
    /// its text.
    RanElsewhere {
        asked: String,
        observed: Option<String>,
    },
    /// The provider has no readable record.
    NotChecked {
        reason: String,
    },
}
