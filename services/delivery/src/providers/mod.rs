//! Calling an agent: one interface, two dialects.
//!
//! A turn makes one or more provider calls. Each is a [`ProviderCall`]; it ends in a [`ProviderAnswer`] or a
//! [`ProviderError`], never in half an answer. When the connection is lost after sending, what became of the call is
//! unknown, and [`NextStep`] says what follows.
//!
//! Nothing here knows the database, the broker or the queue. What a provider returns is untrusted input: bounded in
//! size, number, depth and time, and never interpreted.

mod call;
mod failure;
pub mod openclaw;
mod settings;

pub use call::{
    CallInput, FunctionCall, InputItem, LostCall, ProviderAnswer, ProviderCall, Reconciled, SessionCheck,
    ToolDefinition, ToolOutput, Usage,
};
pub use failure::{Advice, FailureClass, NextStep, ProviderError, Sent};
pub use settings::{Effects, History, Limits, Pool, ProviderKind, ProviderSettings, SettingsError, Thread};
