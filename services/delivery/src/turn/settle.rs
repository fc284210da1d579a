//! Decides what the outcome of a provider call means for its turn, its notifications and its session. Pure: [`settle`]
//! is the rule, and `change.rs` converts its result into row changes.

use std::time::Duration;

use domain::{Backoff, SessionEvent, StopKind, TurnStep};
use storage::session::sessions_lock::Stop;

use crate::{
    providers::{Advice, Effects, FailureClass, NextStep, ProviderAnswer, ProviderError, Sent, Usage},
    settings::DeliverySettings,
    store::journal::{Call, NO_PLACE, Round},
};
use contracts::tool::ARGUMENTS_BYTES_MAX;
use prompt::arguments_too_large;

/// The error class of a call whose outcome stays unknown.
pub(super) const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// The outcome of a provider call.
#[derive(Debug)]
pub enum CallOutcome {
    Answered(ProviderAnswer),
    Failed(ProviderError),
    /// The provider's record says that the call is still running, or could not be read.
    NotKnownYet,
    /// The record says that the call never began.
    DidNotRun,
    /// The outcome stays unknown.
    Lost {
        why: String,
    },
    /// A tool's result has ended the turn.
    EndedByTool {
        reply: String,
    },
    /// The turn was not resumed.
    Aborted,
    /// The turn was to end before its call was sent.
    NotSent,
    /// The call was dropped on request. `confirmed`: the agent has ended, or had not begun.
    Stopped {
        confirmed: bool,
    },
}

/// The facts that decide besides the outcome.
#[derive(Clone, Debug)]
pub struct AttemptFacts {
    pub effects: Effects,
    /// The generation has ended meanwhile: the reply is recorded and changes nothing.
    pub closed: bool,
    /// Failures of this call before this one.
    pub failures: i32,
    /// Provider calls answered before this one.
    pub rounds: i32,
    /// Tool calls requested before, and the place of the last one that was passed on.
    pub calls_before: i32,
    pub ordinal_before: i32,
    /// Attempts at its notifications so far.
    pub attempts: i32,
    /// How long the outcome of the call has been unknown.
    pub lost_for: Duration,
    /// The turn is to end.
    pub stop: Option<Stop>,
    /// Its provider's breaker is not closed, as this call or another one has found: when the turn looks again.
    pub breaker: Option<Duration>,
    /// The provider keeps a thread as long as its process runs, and has answered in this turn's: a failure means that the thread
    /// is gone.
    pub fragile: bool,
    /// The turn may begin again in a new thread: it has not done so yet.
    pub may_start_afresh: bool,
}

/// The decision.
#[derive(Clone, PartialEq, Debug, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Settled {
    /// The turn ended with a reply.
    Finished {
        reply: String,
        response_id: Option<String>,
        usage: Option<Usage>,
        note: Option<String>,
        late: bool,
        /// Its reply is not the provider's.
        by_tool: bool,
    },
    /// The agent asked for tools; its turn waits without a lease.
    AwaitTools { round: Round },
    /// A call is due again after a pause. `repeats`: it is the same call, under the same idempotency key, since the
    /// last one's outcome is unknown. Not `counts`: the turn waits for its provider, which is no attempt.
    Again {
        after: Duration,
        repeats: bool,
        counts: bool,
        error: String,
        class: &'static str,
    },
    /// The provider has lost the thread: the whole turn is sent in a new one. No attempt.
    FreshStart { after: Duration, error: String },
    /// The call's outcome is looked up after a pause; until then the call counts as in flight.
    LookAgain { after: Duration },
    /// The turn ended and its notifications are queued again, first in the queue; the next turn is told. `step`: lost
    /// or failed. `counts`: as above.
    Interrupted {
        step: TurnStep,
        after: Duration,
        counts: bool,
        error: String,
        class: &'static str,
    },
    /// The turn and its notifications failed. `interrupted`: the agent's progress is unknown, so the next turn is told.
    GaveUp {
        error: String,
        class: &'static str,
        interrupted: bool,
    },
    /// The turn ended because its session was closed.
    Aborted,
    /// The turn was stopped on request: no failure, no other attempt. Not `confirmed`: the agent's progress is unknown, so
    /// the next turn is told.
    Stopped {
        kind: StopKind,
        because: String,
        confirmed: bool,
        usage: Option<Usage>,
    },
}

/// How a turn ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'a> {
    pub reply: Option<&'a str>,
    pub late: bool,
    pub error: Option<&'a str>,
}

impl Settled {
    /// The step of the turn.
    pub fn step(&self) -> TurnStep {
        match self {
            Settled::Finished { by_tool: true, .. } => TurnStep::EndByTool,
            Settled::Finished { by_tool: false, .. } => TurnStep::Reply,
            Settled::AwaitTools { .. } => TurnStep::AskTools,
            Settled::Again { .. } | Settled::FreshStart { .. } => TurnStep::Retry,
            Settled::LookAgain { .. } => TurnStep::LookAgain,
            Settled::Interrupted { step, .. } => *step,
            Settled::GaveUp { .. } => TurnStep::GiveUp,
            Settled::Aborted | Settled::Stopped { .. } => TurnStep::Abort,
        }
    }

    /// The event of its session.
    pub fn event(&self) -> SessionEvent {
        match self {
            Settled::AwaitTools { .. } => SessionEvent::ToolsAsked,
            Settled::Again { .. } | Settled::FreshStart { .. } | Settled::LookAgain { .. } => {
                SessionEvent::RetryScheduled
            }
            Settled::Interrupted { .. } => SessionEvent::TurnInterrupted,
            Settled::Finished { .. } | Settled::GaveUp { .. } | Settled::Aborted | Settled::Stopped { .. } => {
                SessionEvent::TurnEnded
            }
        }
    }

    /// The text and the class of a failure.
    pub fn error(&self) -> Option<(&str, &'static str)> {
        match self {
            Settled::Again { error, class, .. }
            | Settled::Interrupted { error, class, .. }
            | Settled::GaveUp { error, class, .. } => Some((error, class)),
            Settled::FreshStart { error, .. } => Some((error, FailureClass::ThreadLost.as_str())),
            Settled::Finished { .. }
            | Settled::AwaitTools { .. }
            | Settled::LookAgain { .. }
            | Settled::Aborted
            | Settled::Stopped { .. } => None,
        }
    }

    /// Whether a failure was an attempt.
    pub fn counts(&self) -> bool {
        match self {
            Settled::Again { counts, .. } | Settled::Interrupted { counts, .. } => *counts,
            Settled::FreshStart { .. } => false,
            Settled::Finished { .. }
            | Settled::AwaitTools { .. }
            | Settled::LookAgain { .. }
            | Settled::GaveUp { .. }
            | Settled::Aborted
            | Settled::Stopped { .. } => true,
        }
    }

    /// None: the turn continues. `because`: why its session was closed, if it was.
    pub fn ended<'a>(&'a self, because: &'a str) -> Option<Ended<'a>> {
        let (reply, late, error) = match self {
            Settled::AwaitTools { .. }
            | Settled::Again { .. }
            | Settled::FreshStart { .. }
            | Settled::LookAgain { .. } => return None,
            Settled::Finished { reply, late, note, .. } => (Some(reply.as_str()), *late, note.as_deref()),
            Settled::Interrupted { error, .. } | Settled::GaveUp { error, .. } => (None, false, Some(error.as_str())),
            Settled::Aborted => (None, true, Some(because)),
            Settled::Stopped { because, .. } => (None, false, Some(because.as_str())),
        };
        Some(Ended { reply, late, error })
    }

    /// The name for logs and metrics.
    pub fn as_str(&self) -> &'static str {
        self.into()
    }
}

pub fn settle(outcome: &CallOutcome, facts: &AttemptFacts, limits: &DeliverySettings) -> Settled {
    if let Some(stop) = &facts.stop {
        return stopped(outcome, stop, facts, limits);
    }
    match outcome {
        CallOutcome::Answered(answer) => answered(answer, facts, limits),
        CallOutcome::Failed(error) => failed(error, facts, limits),
        CallOutcome::NotKnownYet if facts.lost_for > limits.look_up_ms_max.duration() => {
            let why =
                "the call was sent, no answer was received, and the provider's record could not be read".to_owned();
            interrupted(TurnStep::Lose, why, OUTCOME_UNKNOWN, facts, limits)
        }
        CallOutcome::NotKnownYet => Settled::LookAgain {
            after: limits.look_up_delay_ms.duration(),
        },
        CallOutcome::DidNotRun if facts.closed => Settled::Aborted,
        CallOutcome::DidNotRun => not_run(facts, limits),
        CallOutcome::Lost { why } => interrupted(TurnStep::Lose, why.clone(), OUTCOME_UNKNOWN, facts, limits),
        CallOutcome::EndedByTool { reply } => ended_by_tool(reply, facts),
        CallOutcome::Aborted => Settled::Aborted,
        // The request is gone, so the call is due again.
        CallOutcome::Stopped { .. } | CallOutcome::NotSent if facts.closed => Settled::Aborted,
        CallOutcome::Stopped { .. } | CallOutcome::NotSent => not_run(facts, limits),
    }
}

/// A turn that is to end. A reply that is there already came first: the request was too late. Everything else ends the
/// turn; tool calls of the answer are not passed on.
fn stopped(outcome: &CallOutcome, stop: &Stop, facts: &AttemptFacts, limits: &DeliverySettings) -> Settled {
    let ended = |confirmed, usage| Settled::Stopped {
        kind: stop.kind,
        because: stop.kind.because(&stop.by),
        confirmed,
        usage,
    };
    match outcome {
        CallOutcome::Answered(answer) if answer.calls.is_empty() => answered(answer, facts, limits),
        CallOutcome::Answered(answer) => ended(true, answer.usage),
        CallOutcome::EndedByTool { reply } => ended_by_tool(reply, facts),
        CallOutcome::Failed(_) | CallOutcome::DidNotRun | CallOutcome::Aborted | CallOutcome::NotSent => {
            ended(true, None)
        }
        CallOutcome::NotKnownYet | CallOutcome::Lost { .. } => ended(false, None),
        CallOutcome::Stopped { confirmed } => ended(*confirmed, None),
    }
}

fn ended_by_tool(reply: &str, facts: &AttemptFacts) -> Settled {
    Settled::Finished {
        reply: reply.to_owned(),
        response_id: None,
        usage: None,
        note: None,
        late: facts.closed,
        by_tool: true,
    }
}

fn answered(answer: &ProviderAnswer, facts: &AttemptFacts, limits: &DeliverySettings) -> Settled {
    if answer.calls.is_empty() {
        return Settled::Finished {
            reply: clean(&answer.text),
            response_id: answer.response_id.clone(),
            usage: answer.usage,
            note: answer
                .incomplete_reason
                .as_ref()
                .map(|reason| format!("the answer is incomplete: {reason}")),
            late: facts.closed,
            by_tool: false,
        };
    }
    let calls = i32::try_from(answer.calls.len()).unwrap_or(i32::MAX);
    if facts.rounds + 1 > limits.rounds_max.i32() || facts.calls_before.saturating_add(calls) > limits.calls_max.i32() {
        return Settled::GaveUp {
            error: format!(
                "tool call limit exceeded: more than {} rounds or {} calls in one turn",
                limits.rounds_max.get(),
                limits.calls_max.get()
            ),
            class: "tool_loop",
            interrupted: false,
        };
    }
    Settled::AwaitTools {
        round: round(answer, facts.ordinal_before),
    }
}

/// An answer with tool calls, for the journal. `ordinal_before`: the place of the last call that was passed on.
pub fn round(answer: &ProviderAnswer, ordinal_before: i32) -> Round {
    let mut ordinals = ordinal_before + 1..;
    let calls = answer.calls.iter().map(|call| {
        let answered = (call.arguments.len() > ARGUMENTS_BYTES_MAX).then(arguments_too_large);
        // The arguments of a call that is not passed on are not stored.
        let arguments = if answered.is_some() {
            String::new()
        } else {
            clean(&call.arguments)
        };
        // Ordinals number the calls that are passed on, without a gap: a call runs after all earlier ordinals.
        let ordinal = match answered {
            Some(_) => NO_PLACE,
            None => ordinals.next().expect("calls of a turn are limited"),
        };
        Call {
            call_id: short(clean(&call.call_id)),
            ordinal,
            name: short(clean(&call.name)),
            arguments,
            answered,
            matched: None,
        }
    });
    Round {
        response_id: answer.response_id.clone(),
        text: clean(&answer.text),
        calls: calls.collect(),
        reasoning: answer.reasoning.clone(),
        usage: answer.usage,
    }
}

fn failed(error: &ProviderError, facts: &AttemptFacts, limits: &DeliverySettings) -> Settled {
    let class = error.class.as_str();
    let text = error.to_string();
    let next = error.next_step(facts.effects);
    if is_thread_lost(error, next, facts) {
        return match (facts.closed, facts.may_start_afresh) {
            (true, _) => Settled::Aborted,
            (false, true) => Settled::FreshStart {
                after: facts.breaker.unwrap_or_default(),
                error: text,
            },
            (false, false) => Settled::GaveUp {
                error: format!("{text}; the turn had begun again in a new thread before"),
                class: FailureClass::ThreadLost.as_str(),
                interrupted: false,
            },
        };
    }
    match next {
        NextStep::Reconcile => Settled::LookAgain {
            after: limits.look_up_delay_ms.duration(),
        },
        NextStep::GiveUp => Settled::GaveUp {
            error: text,
            class,
            interrupted: false,
        },
        NextStep::TellTheAgent => interrupted(TurnStep::GiveUp, text, class, facts, limits),
        NextStep::SendAgain | NextStep::Pause if facts.closed => Settled::Aborted,
        NextStep::SendAgain | NextStep::Pause if let Some(after) = facts.breaker => Settled::Again {
            after,
            repeats: error.sent == Sent::Maybe,
            counts: false,
            error: text,
            class,
        },
        NextStep::SendAgain | NextStep::Pause if facts.failures + 1 >= limits.attempts_max.i32() => Settled::GaveUp {
            error: format!(
                "{text} (attempt {} of {})",
                facts.failures + 1,
                limits.attempts_max.i32()
            ),
            class,
            interrupted: false,
        },
        NextStep::SendAgain => Settled::Again {
            after: delay(facts.failures, error.retry_after, limits),
            repeats: error.sent == Sent::Maybe,
            counts: true,
            error: text,
            class,
        },
        NextStep::Pause => {
            debug_assert!(error.class.advice() == Advice::Pause, "only such classes pause");
            Settled::Again {
                after: limits.pause_delay_ms.duration(),
                repeats: false,
                counts: true,
                error: text,
                class,
            }
        }
    }
}

/// Whether the failure of a call that may be sent again means that the provider has lost its thread.
fn is_thread_lost(error: &ProviderError, next: NextStep, facts: &AttemptFacts) -> bool {
    match error.class {
        FailureClass::ThreadLost => true,
        FailureClass::Refused | FailureClass::Truncated | FailureClass::ServerError | FailureClass::Timeout => {
            facts.fragile && next == NextStep::SendAgain
        }
        FailureClass::Unauthorized
        | FailureClass::AgentUnauthorized
        | FailureClass::Quota
        | FailureClass::RateLimited
        | FailureClass::Malformed
        | FailureClass::TooLarge
        | FailureClass::BadRequest
        | FailureClass::Failed => false,
    }
}

/// The call is resent at once the first time. A provider that loses call after call is treated like one that fails.
fn not_run(facts: &AttemptFacts, limits: &DeliverySettings) -> Settled {
    let (error, class) = ("the provider never began the call".to_owned(), "not_run");
    if let Some(after) = facts.breaker {
        return Settled::Again {
            after,
            repeats: true,
            counts: false,
            error,
            class,
        };
    }
    if facts.failures + 1 >= limits.attempts_max.i32() {
        return Settled::GaveUp {
            error,
            class,
            interrupted: false,
        };
    }
    let after = match facts.failures {
        ..=0 => Duration::ZERO,
        failures => delay(failures - 1, None, limits),
    };
    Settled::Again {
        after,
        repeats: true,
        counts: true,
        error,
        class,
    }
}

/// The turn ended without an answer; its notifications are queued again.
fn interrupted(
    step: TurnStep,
    error: String,
    class: &'static str,
    facts: &AttemptFacts,
    limits: &DeliverySettings,
) -> Settled {
    if facts.closed {
        return Settled::Aborted;
    }
    if let Some(after) = facts.breaker {
        return Settled::Interrupted {
            step,
            after,
            counts: false,
            error,
            class,
        };
    }
    if facts.attempts + 1 >= limits.attempts_max.i32() {
        return Settled::GaveUp {
            error,
            class,
            interrupted: true,
        };
    }
    Settled::Interrupted {
        step,
        after: delay(facts.attempts, None, limits),
        counts: true,
        error,
        class,
    }
}

/// Longest wait accepted from a provider for a single call. Beyond it, a retry is cheaper than the wait.
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// Doubled with every failure; never shorter than the provider's requested wait.
fn delay(failures: i32, retry_after: Option<Duration>, limits: &DeliverySettings) -> Duration {
    let own = Backoff::new(limits.retry_delay_ms.duration(), limits.retry_delay_ms_max.duration());
    own.after(failures.max(0).unsigned_abs())
        .max(retry_after.unwrap_or_default().min(WAIT_MAX))
}

/// Replaces NUL, which Postgres cannot store in a text and a provider may send.
pub(super) fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Bounds names and ids of calls, which come from the provider.
fn short(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(256));
    text
}

#[cfg(test)]
mod tests;
