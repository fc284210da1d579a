//! The failures of a provider call and the possible next steps. Two separate questions: may a retry succeed
//! ([`FailureClass`]), and is a retry a repetition ([`Sent`])? The table is [`ProviderError::next_step`].

use std::fmt;
use std::time::Duration;

use super::settings::Effects;

/// Maximum length of a detail: enough for a provider's message, too short for a prompt.
const DETAIL_CHARS_MAX: usize = 400;

/// A call that ended without an answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("provider call failed ({class}, {sent}): {detail}")]
pub struct ProviderError {
    pub class: FailureClass,
    pub sent: Sent,
    /// The wait that the provider requested, capped.
    pub retry_after: Option<Duration>,
    /// Known when the stream had begun; identifies the call in the provider's history.
    pub response_id: Option<String>,
    /// For operators: what was attempted and what was returned. Bounded, without control characters, never a
    /// credential.
    pub detail: String,
}

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum FailureClass {
    /// No connection: refused, no such host, TLS.
    Refused,
    /// The provider does not accept our credential.
    Unauthorized,
    /// The agent behind the provider has no valid credential for its own model.
    AgentUnauthorized,
    /// The account has no money or quota left.
    Quota,
    /// Rate limit, at the provider or at its own upstream.
    RateLimited,
    /// The provider is starting, stopping, overloaded or failing.
    ServerError,
    /// The provider was silent for too long, or its answer never ended.
    Timeout,
    /// The connection closed, or the stream ended, before the answer was complete.
    Truncated,
    /// The answer violates the protocol.
    Malformed,
    /// The answer exceeds one of our limits.
    TooLarge,
    /// The request is wrong: settings, model name, tool definitions, size.
    BadRequest,
    /// The turn ran and failed at the provider, for a reason that a retry does not cure.
    Failed,
    /// The provider no longer has the thread that the call was to go on in.
    ThreadLost,
}

/// Whether the provider ran the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sent {
    /// The call did not run: it was not sent, or it was refused.
    No,
    /// Unknown. Check the provider's history before a retry, unless all effects go through our tools.
    Maybe,
    /// The call ran and ended without an answer, by the provider's own report. Its text may be in the provider's
    /// thread.
    Yes,
}

/// The advice of a class alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Retry later, with a limit on attempts.
    Retry,
    /// The same call will fail the same way: fail the turn.
    GiveUp,
    /// Every call to this provider will fail until the operator acts: hold its work, tell the operator.
    Pause,
}

/// The next step of the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NextStep {
    /// Send the same call again, after the wait.
    SendAgain,
    /// Check the provider's record first ([`super::Driver::reconcile`]).
    Reconcile,
    /// Only as a new call whose text says that the previous one was interrupted: the agent may already have acted.
    TellTheAgent,
    GiveUp,
    Pause,
}

impl FailureClass {
    /// Whether a retry may succeed.
    pub fn advice(self) -> Advice {
        match self {
            Self::Refused | Self::RateLimited | Self::ServerError | Self::Timeout => Advice::Retry,
            Self::Truncated | Self::Malformed | Self::ThreadLost => Advice::Retry,
            Self::Unauthorized | Self::AgentUnauthorized | Self::Quota => Advice::Pause,
            Self::TooLarge | Self::BadRequest | Self::Failed => Advice::GiveUp,
        }
    }

    /// The name for logs, metrics and rows.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "not run",
            Self::Maybe => "outcome unknown",
            Self::Yes => "ran and failed",
        })
    }
}

impl ProviderError {
    pub(crate) fn new(class: FailureClass, sent: Sent, detail: impl AsRef<str>) -> Self {
        Self {
            class,
            sent,
            retry_after: None,
            response_id: None,
            detail: bounded(detail.as_ref()),
        }
    }

    pub(super) fn with_retry_after(self, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..self }
    }

    pub(super) fn with_response_id(self, response_id: Option<String>) -> Self {
        Self { response_id, ..self }
    }

    /// The next step, depending on who causes the agent's side effects (product.md, "Settled").
    ///
    /// With [`Effects::GatewayOnly`] a repetition is harmless: our tools answer a repeated call with the first result.
    /// An agent with tools of its own never gets the same call twice on a guess, not even when its class advises
    /// failing the turn: the next turn must be told whether the call ran.
    pub fn next_step(&self, effects: Effects) -> NextStep {
        if self.sent == Sent::Maybe && effects == Effects::Own {
            return NextStep::Reconcile;
        }
        match (self.class.advice(), self.sent, effects) {
            (Advice::Pause, _, _) => NextStep::Pause,
            (Advice::GiveUp, _, _) => NextStep::GiveUp,
            (Advice::Retry, Sent::Yes, Effects::Own) => NextStep::TellTheAgent,
            (Advice::Retry, Sent::No | Sent::Maybe | Sent::Yes, _) => NextStep::SendAgain,
        }
    }
}

/// One line of at most [`DETAIL_CHARS_MAX`] characters: details come from outside and appear in logs and on pages.
fn bounded(detail: &str) -> String {
    let mut line: String = detail
        .chars()
        .take(DETAIL_CHARS_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if detail.chars().nth(DETAIL_CHARS_MAX).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(class: FailureClass, sent: Sent, gateway_only: NextStep, own: NextStep) {
        let error = ProviderError::new(class, sent, "x");
        assert_eq!(
            error.next_step(Effects::GatewayOnly),
            gateway_only,
            "{class} {sent}, gateway_only"
        );
        assert_eq!(error.next_step(Effects::Own), own, "{class} {sent}, own");
    }

    #[test]
    fn names_the_next_step_after_a_failure() {
        use FailureClass as C;
        use NextStep::{GiveUp, Pause, Reconcile, SendAgain, TellTheAgent};
        use Sent::{Maybe, No, Yes};
        check(C::Refused, No, SendAgain, SendAgain);
        check(C::Unauthorized, No, Pause, Pause);
        check(C::AgentUnauthorized, Yes, Pause, Pause);
        check(C::Quota, Yes, Pause, Pause);
        check(C::RateLimited, No, SendAgain, SendAgain);
        check(C::RateLimited, Yes, SendAgain, TellTheAgent);
        check(C::ServerError, No, SendAgain, SendAgain);
        check(C::ServerError, Maybe, SendAgain, Reconcile);
        check(C::ServerError, Yes, SendAgain, TellTheAgent);
        check(C::Timeout, Maybe, SendAgain, Reconcile);
        check(C::Truncated, Maybe, SendAgain, Reconcile);
        check(C::Malformed, Maybe, SendAgain, Reconcile);
        check(C::TooLarge, Maybe, GiveUp, Reconcile);
        check(C::BadRequest, No, GiveUp, GiveUp);
        check(C::BadRequest, Yes, GiveUp, GiveUp);
        check(C::Failed, Yes, GiveUp, GiveUp);
        check(C::ThreadLost, No, SendAgain, SendAgain);
    }

    #[test]
    fn keeps_details_short_and_on_one_line() {
        let error = ProviderError::new(
            FailureClass::Failed,
            Sent::Yes,
            format!("a\nb\u{1b}[31m{}", "ü".repeat(1_000)),
        );
        assert!(error.detail.starts_with("a b [31mü"));
        assert_eq!(error.detail.chars().count(), DETAIL_CHARS_MAX + 1);
    }
}
