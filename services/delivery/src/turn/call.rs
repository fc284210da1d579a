//! Makes one provider call: no transaction open, cancelled when the lease is lost, text passed on as it arrives.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use contracts::{Outgoing, Root, Timestamp, live::LiveText};
use domain::{breaker::Sign, context::Told};
use futures::FutureExt;
use messaging::trace;
use runtime::Incarnation;
use time::OffsetDateTime;
use tokio::{sync::mpsc, time::Instant};
use tracing::{Instrument, Span, field::Empty, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::{
    resume::Due,
    settle::{CallOutcome, clean},
    work::Work,
};
use crate::providers::{
    Driver, Effects, FailureClass, NextStep, Previous, ProviderAnswer, ProviderCall, ProviderError, Reconciled, Sent,
    SessionCheck, ThreadCheck,
};
use crate::{
    SOURCE,
    breaker::{ProviderFault, Said, fault_of},
    metrics,
};

/// The result of a turn's call, for recording.
#[derive(Debug)]
pub struct Report {
    pub work: Work,
    pub outcome: CallOutcome,
    /// The provider ran another session than the key names.
    pub mismatch: Option<String>,
    /// A failure of the call that says something of its provider, whatever became of the outcome.
    pub fault: Option<ProviderFault>,
    /// The answer denies that it went on from the response that the call named: what it said.
    pub unconfirmed: Option<String>,
}

/// How a call ended.
struct Ended {
    outcome: CallOutcome,
    mismatch: Option<String>,
    fault: Option<ProviderFault>,
    unconfirmed: Option<String>,
}

impl From<CallOutcome> for Ended {
    fn from(outcome: CallOutcome) -> Ended {
        Ended {
            outcome,
            mismatch: None,
            fault: None,
            unconfirmed: None,
        }
    }
}

/// Like [`run`]. A panic while processing a provider's answer must not stop the process, and must not repeat for ever:
/// it counts as a failed attempt.
pub async fn run_guarded(
    mut work: Work,
    driver: Option<Arc<Driver>>,
    root: &Root,
    live: &mpsc::Sender<Outgoing>,
    incarnation: &Incarnation,
    confirm: Confirm,
) -> Option<Report> {
    // Released when the call has ended, before it is recorded.
    let slot = work.slot.take();
    let calling = AssertUnwindSafe(run(&work, driver, root, live, incarnation, confirm)).catch_unwind();
    let Ended {
        outcome,
        mismatch,
        fault,
        unconfirmed,
    } = match calling.await {
        Ok(ended) => ended?,
        Err(_) => {
            tracing::error!(
                turn_id = %work.turn.id, session_id = %work.turn.session,
                "provider call panicked; it counts as a malformed answer"
            );
            let error = ProviderError::new(FailureClass::Malformed, Sent::Maybe, "processing the answer failed");
            CallOutcome::Failed(error).into()
        }
    };
    drop(slot);
    Some(Report {
        work,
        outcome,
        mismatch,
        fault,
        unconfirmed,
    })
}

impl Report {
    /// The same call with a failed outcome, for an outcome that cannot be stored.
    pub fn unrecordable(self) -> Report {
        let detail = "recording the answer failed; delivery's log has the cause";
        Report {
            outcome: CallOutcome::Failed(ProviderError::new(FailureClass::Malformed, Sent::Yes, detail)),
            mismatch: None,
            unconfirmed: None,
            ..self
        }
    }

    /// What it says of its provider. None: the call is still running.
    pub fn said(&self) -> Option<Said<'_>> {
        let sign = match (&self.outcome, &self.fault) {
            (CallOutcome::Answered(_), _) => Sign::Good,
            (_, Some(_)) if self.work.fails_alone() => Sign::Neither,
            (_, Some(fault)) => Sign::Bad(fault.fault),
            (CallOutcome::NotKnownYet, None) => return None,
            (
                CallOutcome::Failed(_)
                | CallOutcome::DidNotRun
                | CallOutcome::Lost { .. }
                | CallOutcome::Aborted
                | CallOutcome::EndedByTool { .. }
                | CallOutcome::NotSent
                | CallOutcome::Stopped { .. },
                None,
            ) => Sign::Neither,
        };
        Some(Said {
            turn: self.work.turn_name(),
            provider: &self.work.provider,
            pass: self.work.pass,
            sign,
            because: self.fault.as_ref().map(|fault| &fault.because),
        })
    }
}

/// Makes the due call, or looks up the outcome of the last one. `None`: the lease was lost, and its next holder resumes the turn as stored.
async fn run(
    work: &Work,
    driver: Option<Arc<Driver>>,
    root: &Root,
    live: &mpsc::Sender<Outgoing>,
    incarnation: &Incarnation,
    confirm: Confirm,
) -> Option<Ended> {
    match work.due {
        Due::Abort => return Some(CallOutcome::Aborted.into()),
        Due::End => return Some(ended_by_tool(work).into()),
        Due::Send | Due::LookUp => {}
    }
    // Nothing was sent yet.
    if work.due == Due::Send && work.stop.is_cancelled() {
        return Some(CallOutcome::NotSent.into());
    }
    let driver = driver.expect("the gate `config` keeps turns without a provider");
    if work.replay.is_some() && driver.effects == Effects::Own {
        let error = ProviderError::new(FailureClass::BadRequest, Sent::No, REPLAY_WITH_EFFECTS);
        return Some(CallOutcome::Failed(error).into());
    }
    let span = call_span(work, &driver);
    // The lease may have been lost between the claim and this call.
    if !incarnation.is_alive() {
        return None;
    }
    // Dropping a call closes its connection, which a provider that notices treats as a stop; that is intended.
    let ended = async {
        let ended = tokio::select! {
            ended = exchange(work, &driver, root, live).instrument(span.clone()) => ended,
            () = work.stop.cancelled() => return stopped(work, &driver, confirm).await.into(),
        };
        // An answer that is here is not dropped any more.
        let mismatch = session_check(work, &driver, &ended.outcome).instrument(span).await;
        Ended { mismatch, ..ended }
    };
    let ended = tokio::select! {
        ended = ended => Some(ended),
        () = incarnation.lost.cancelled() => None,
    };
    if ended.is_none() {
        warn!(
            turn_id = %work.turn.id, session_id = %work.turn.session,
            "lease lost during a provider call; its next holder resumes the turn"
        );
    }
    ended
}

/// Why a replay makes no call.
const REPLAY_WITH_EFFECTS: &str =
    "the provider's agents have tools of their own: running the turn again would have effects";

/// How long to ask the provider whether a stopped call has ended, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Confirm {
    pub within: Duration,
    pub every: Duration,
}

/// The outcome of a call that was dropped on request. An agent with effects of its own may go on after its connection was
/// closed: only the provider's record confirms its end. A reply in the record came before the request.
async fn stopped(work: &Work, driver: &Driver, confirm: Confirm) -> CallOutcome {
    if work.effects == Effects::GatewayOnly {
        return CallOutcome::Stopped { confirmed: true };
    }
    let dropped = Instant::now();
    let until = dropped + confirm.within;
    let call = provider_call(work);
    let lost_before = work.lost_for(OffsetDateTime::now_utc());
    loop {
        match driver
            .reconcile(&call.lost(None, lost_before + dropped.elapsed()))
            .await
        {
            Reconciled::Ran(answer) => return CallOutcome::Answered(answer),
            Reconciled::Failed(_) | Reconciled::DidNotRun => return CallOutcome::Stopped { confirmed: true },
            Reconciled::Unknown { .. } => return CallOutcome::Stopped { confirmed: false },
            Reconciled::StillRunning | Reconciled::Unreachable(_) if Instant::now() + confirm.every > until => {
                return CallOutcome::Stopped { confirmed: false };
            }
            Reconciled::StillRunning | Reconciled::Unreachable(_) => tokio::time::sleep(confirm.every).await,
        }
    }
}

/// By OpenTelemetry's conventions for generative AI, as far as the provider reports it. Attributes instead of fields
/// where only traces need them, since fields would appear on every log line.
fn call_span(work: &Work, driver: &Driver) -> Span {
    let span = tracing::info_span!(
        "provider_call",
        otel.name = format!("chat {}", driver.model),
        otel.kind = "client",
        otel.status_code = Empty,
        turn_id = %work.turn.id,
        account = %work.turn.account,
        session_key = %work.thread.name,
        provider = %work.provider,
        attempt = work.attempt,
        round = work.journal.rounds.len(),
    );
    if work.trace.traceparent.is_some() {
        trace::child_of(&span, &work.trace);
    }
    span.set_attribute("gen_ai.operation.name", "chat");
    span.set_attribute("gen_ai.provider.name", driver.kind.as_str());
    span.set_attribute("gen_ai.request.model", driver.model.clone());
    span.set_attribute("gen_ai.conversation.id", work.turn.key.clone());
    span
}

/// Records the outcome of a call on its span and in the metrics.
fn note(work: &Work, driver: &Driver, called: &Result<ProviderAnswer, ProviderError>, took: Duration) {
    let span = Span::current();
    match called {
        Ok(answer) => {
            if let Some(id) = &answer.response_id {
                span.set_attribute("gen_ai.response.id", id.clone());
            }
            if let Some(usage) = &answer.usage {
                let count = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
                span.set_attribute("gen_ai.usage.input_tokens", count(usage.input_tokens));
                span.set_attribute("gen_ai.usage.output_tokens", count(usage.output_tokens));
            }
        }
        Err(error) => {
            span.set_attribute("error.type", error.class.as_str());
            span.record("otel.status_code", "ERROR");
        }
    }
    let failed = called.as_ref().err().map(|error| error.class);
    metrics::called(&work.provider, driver, failed, took);
}

async fn exchange(work: &Work, driver: &Driver, root: &Root, live: &mpsc::Sender<Outgoing>) -> Ended {
    let call = provider_call(work);
    // For a call that was lost just now, no time has passed.
    let lost_for = work.lost_for(OffsetDateTime::now_utc());
    match work.due {
        Due::LookUp => looked_up(driver.reconcile(&call.lost(None, lost_for)).await).into(),
        Due::Send => {
            if thread_is_gone(work, driver, &call).await {
                let error = ProviderError::new(
                    FailureClass::ThreadLost,
                    Sent::No,
                    "the provider has no session of the thread's name any more",
                );
                return CallOutcome::Failed(error).into();
            }
            let sent = Instant::now();
            let called = driver.call(&call, speaker(work, root, live)).await;
            note(work, driver, &called, sent.elapsed());
            let fault = called.as_ref().err().and_then(fault_of);
            let unconfirmed = called.as_ref().ok().and_then(|answer| denied(&call, answer));
            let outcome = match called {
                // An agent with effects of its own has acted: it is not run again, and its answer stands.
                Ok(_)
                    if let Some(said) = &unconfirmed
                        && work.effects == Effects::GatewayOnly =>
                {
                    CallOutcome::Failed(ProviderError::new(FailureClass::ThreadLost, Sent::Yes, said))
                }
                Ok(mut answer) => {
                    answer.reasoning = work.journal.room_for(answer.reasoning);
                    CallOutcome::Answered(answer)
                }
                Err(error) if error.next_step(work.effects) == NextStep::Reconcile => {
                    looked_up(driver.reconcile(&call.lost(error.response_id, lost_for)).await)
                }
                Err(error) => CallOutcome::Failed(driver.advised(error, &call)),
            };
            Ended {
                fault,
                unconfirmed,
                ..outcome.into()
            }
        }
        Due::End => ended_by_tool(work).into(),
        Due::Abort => CallOutcome::Aborted.into(),
    }
}

/// Whether the thread in which a turn begins was unused for long, and the provider's record says that it is gone.
async fn thread_is_gone(work: &Work, driver: &Driver, call: &ProviderCall) -> bool {
    let is_first = work.journal.last().is_none();
    let (Some(after), Some(used_at)) = (driver.thread_check_after, work.thread.used_at.filter(|_| is_first)) else {
        return false;
    };
    let unused = Told::moment(OffsetDateTime::now_utc()).saturating_sub(used_at);
    let is_long = u64::try_from(unused).is_ok_and(|unused| Duration::from_millis(unused) >= after);
    is_long && driver.thread_check(call).await == ThreadCheck::Gone
}

/// What an answer says instead of the response from which its call was to go on.
fn denied(call: &ProviderCall, answer: &ProviderAnswer) -> Option<String> {
    let after = call.after.as_deref().filter(|after| answer.previous.denies(after))?;
    let said = match &answer.previous {
        Previous::Id(id) => id.as_str(),
        Previous::None | Previous::NotSaid => "none",
    };
    Some(clean(&format!(
        "the call was to go on from response {after}, the answer names {said}"
    )))
}

/// The plan is the turn's reply.
fn ended_by_tool(work: &Work) -> CallOutcome {
    let arguments = work
        .ended_with
        .as_deref()
        .and_then(|text| serde_json::from_str(text).ok());
    let plan = arguments.and_then(|arguments: serde_json::Value| arguments["plan"].as_str().map(clean));
    CallOutcome::EndedByTool {
        reply: plan.unwrap_or_default(),
    }
}

/// Whether the provider ran another session than the key names. Asked right after the first turn of a thread that others are to
/// go on in, so that a wrong session has one turn and not a hundred.
async fn session_check(work: &Work, driver: &Driver, outcome: &CallOutcome) -> Option<String> {
    match outcome {
        CallOutcome::Answered(_) if work.number == 1 || work.thread.opens() => {
            mismatch(driver.session_check(&provider_call(work)).await)
        }
        _ => None,
    }
}

fn provider_call(work: &Work) -> ProviderCall {
    ProviderCall {
        turn_id: work.turn.id.uuid(),
        attempt: u32::try_from(work.attempt).unwrap_or(1),
        session_key: work.thread.name.clone(),
        after: work.thread.after.clone(),
        instructions: work.instructions.clone(),
        input: work.input.clone(),
        tools: work.tools.clone(),
        traceparent: trace::current_or(&work.trace).traceparent,
    }
}

/// Converts the provider's record of a lost call. Pure.
pub fn looked_up(reconciled: Reconciled) -> CallOutcome {
    match reconciled {
        Reconciled::Ran(answer) => CallOutcome::Answered(answer),
        Reconciled::Failed(error) => CallOutcome::Failed(error),
        Reconciled::DidNotRun => CallOutcome::DidNotRun,
        Reconciled::StillRunning | Reconciled::Unreachable(_) => CallOutcome::NotKnownYet,
        Reconciled::Unknown { reason } => CallOutcome::Lost {
            why: format!("the call was sent, no answer was received, and its outcome is unknown: {reason}"),
        },
    }
}

fn mismatch(check: SessionCheck) -> Option<String> {
    match check {
        SessionCheck::Confirmed | SessionCheck::NotChecked { .. } => None,
        SessionCheck::RanElsewhere { asked, observed } => Some(match observed {
            Some(observed) => clean(&format!("asked for session {asked}, the provider ran {observed}")),
            None => format!("asked for session {asked}, the provider ran another"),
        }),
    }
}

/// Passes text on without waiting: pages may miss a piece, and a turn must not wait for them.
fn speaker<'a>(work: &'a Work, root: &Root, live: &'a mpsc::Sender<Outgoing>) -> impl FnMut(&str) + Send + 'a {
    let (account, task) = (&work.turn.account, work.turn.task.as_ref());
    let (subject, origin) = (root.subject::<LiveText>(account, task), work.origin());
    let mut sequence = 0;
    move |text: &str| {
        // Nobody reads a replay as what its agent says.
        if work.replay.is_some() {
            return;
        }
        let piece = LiveText {
            session_id: work.turn.session,
            generation: work.turn.generation,
            fence: work.turn.fence,
            turn_id: work.turn.id,
            attempt: work.attempt,
            sequence,
            text: text.to_owned(),
        };
        sequence += 1;
        let (id, at) = (piece.message_id(), Timestamp::from(OffsetDateTime::now_utc()));
        let message = Outgoing::new(subject.clone(), &id, SOURCE, (Some(account), task), &origin, at, &piece);
        // The channel is full: the broker is slow, and this text is dropped.
        let _ = live.try_send(message);
    }
}
