//! Calls an agent's provider: one interface, two dialects, and the servers that speak them.
//!
//! A turn makes one or more provider calls. Each is a [`ProviderCall`]; it ends in a complete [`ProviderAnswer`] or in
//! a [`ProviderError`]. When the connection is lost after sending, the call's outcome is unknown:
//! [`ProviderError::next_step`] decides the next step, and [`Driver::reconcile`] checks the provider's own record where
//! there is one.
//!
//! Reading order: [`call`] and [`failure`] are the interface, [`settings`] an operator's entry, and [`server`] the
//! presets for the named kind of server. A driver words the call ([`openresponses`], [`openclaw`]), [`request`] builds
//! its body, and [`transport`] posts it to an allowed address ([`runtime::egress`]). The answer is read ([`body`]),
//! split into events ([`sse`]), parsed ([`contracts::json`]), collected ([`items`]) and converted ([`response`]), or
//! classified as a failure ([`refusal`], [`retry_after`]).
//!
//! No module here uses the database, the broker or the queue. A provider's output is untrusted input: bounded in size,
//! number, depth and time, and never interpreted.

mod body;
mod call;
mod failure;
#[cfg(test)]
mod fuzz;
mod items;
mod openclaw;
mod openresponses;
mod refusal;
mod request;
mod response;
mod retry_after;
mod server;
mod settings;
mod sse;
mod transport;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use call::{
    CallInput, FunctionCall, InputItem, LostCall, Previous, ProviderAnswer, ProviderCall, Reasoning, Reconciled,
    SessionCheck, ThreadCheck, ToolDefinition, ToolOutput, Usage,
};
pub use failure::{Advice, FailureClass, NextStep, ProviderError, Sent};
pub use openclaw::OpenClaw;
pub use openclaw::key::GatewayAgent;
pub use openresponses::OpenResponses;
pub use server::{Continuation, Server, ThreadBy};
pub use settings::{CallLimits, Effects, HistoryLookup, Pool, ProviderKind, ProviderSettings, SettingsError, Thread};
pub use transport::DriverError;

/// A permit for one concurrent call; released when dropped.
pub type Slot = OwnedSemaphorePermit;

/// One configured provider. Cheap to share behind an `Arc`.
#[derive(Debug)]
pub struct Driver {
    dialect: Dialect,
    pub kind: ProviderKind,
    /// The model that calls request.
    pub model: String,
    /// How long the provider keeps a thread.
    pub thread: Thread,
    /// How the rounds of a turn are continued, and how a thread is found.
    pub continuation: Continuation,
    /// A thread that was not used for so long is looked up before its next turn. None: it is never looked up.
    pub thread_check_after: Option<Duration>,
    /// Who causes a turn's side effects; input of [`ProviderError::next_step`].
    pub effects: Effects,
    slots: Arc<Semaphore>,
}

#[derive(Debug)]
enum Dialect {
    OpenResponses(OpenResponses),
    OpenClaw(OpenClaw),
}

impl Driver {
    /// The process must have installed a rustls crypto provider before.
    pub fn new(settings: &ProviderSettings) -> Result<Self, DriverError> {
        let dialect = match &settings.gateway_agent {
            Some(agent) => Dialect::OpenClaw(OpenClaw::new(settings, agent.clone())?),
            None => Dialect::OpenResponses(OpenResponses::new(settings)?),
        };
        let slots = Arc::new(Semaphore::new(settings.pool.in_flight_max));
        Ok(Self {
            dialect,
            kind: settings.kind,
            model: settings.model.clone(),
            thread: settings.thread,
            continuation: settings.continuation,
            thread_check_after: settings.thread_check_after,
            effects: settings.effects,
            slots,
        })
    }

    /// A slot, if one is free. The claim takes it before it writes: a turn never holds a lease while it waits for a
    /// slot.
    pub fn slot(&self) -> Option<Slot> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    pub fn slots_free(&self) -> usize {
        self.slots.available_permits()
    }

    /// Makes one call. `on_text` gets text while it is generated. That text is not the reply, and a call that fails may
    /// have produced some. Dropping the future closes the connection, and a provider that notices stops the turn.
    pub async fn call(
        &self,
        call: &ProviderCall,
        on_text: impl FnMut(&str) + Send,
    ) -> Result<ProviderAnswer, ProviderError> {
        match &self.dialect {
            Dialect::OpenResponses(driver) => driver.call(call, on_text).await,
            Dialect::OpenClaw(driver) => driver.call(call, on_text).await,
        }
    }

    /// Adds a hint for the operator to a failed call's error.
    pub fn advised(&self, error: ProviderError, call: &ProviderCall) -> ProviderError {
        match &self.dialect {
            Dialect::OpenResponses(driver) => driver.advised(error, call),
            Dialect::OpenClaw(_) => error,
        }
    }

    /// Checks the provider's own record for the outcome of a call without an answer. Must run before anything else is
    /// sent on that key: the next turn takes a cancelled one's text out of the record.
    pub async fn reconcile(&self, lost: &LostCall) -> Reconciled {
        match &self.dialect {
            Dialect::OpenResponses(driver) => driver.reconcile(lost).await,
            Dialect::OpenClaw(driver) => driver.reconcile(lost).await,
        }
    }

    /// Whether the provider still has the thread of a call that is about to be sent.
    pub async fn thread_check(&self, call: &ProviderCall) -> ThreadCheck {
        match &self.dialect {
            Dialect::OpenResponses(_) => ThreadCheck::NotChecked,
            Dialect::OpenClaw(driver) => driver.thread_check(call).await,
        }
    }

    /// After the first turn in a thread: checks whether it ran in the intended session.
    pub async fn session_check(&self, call: &ProviderCall) -> SessionCheck {
        match &self.dialect {
            Dialect::OpenResponses(_) => SessionCheck::NotChecked {
                reason: "the provider keeps no record of calls".to_owned(),
            },
            Dialect::OpenClaw(driver) => driver.session_check(call).await,
        }
    }

    /// A tool's name on the wire: the name that prompts must use.
    pub fn tool_name_on_wire<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match &self.dialect {
            Dialect::OpenResponses(_) => Cow::Borrowed(name),
            Dialect::OpenClaw(_) => Cow::Owned(openclaw::wording::tool_name_on_wire(name)),
        }
    }
}
