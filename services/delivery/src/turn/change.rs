//! Converts a settled outcome into the changes of the turn's, the session's and the notifications' rows. Pure.

use std::time::Duration;

use domain::{
    BRANCH_ENDED, CloseReason, ContextReason, Gate, HANDED_OVER, ImpossibleStep, NotificationState, ResetInFlight,
    ResetRequest, SESSION_RESET, SessionEvent, SessionPhase, StopKind, StopThen, TASK_CLOSED, TurnContext,
    breaker::Sign,
    context::{THREADS_LOST_MAX, Told},
    progress::Deeds,
};
use storage::{
    lifecycle::reply_message_id,
    session::sessions_close::{AGENT_REMOVED, MEMBER_REMOVED, UNREACHABLE},
};
use time::OffsetDateTime;

use super::{
    call::Report,
    messages::begun_at,
    settle::{CallOutcome, Settled},
    starter::millis,
    work::Work,
};
use crate::{
    providers::{Continuation, FailureClass, Thread, Usage},
    settings::DeliverySettings,
    store::journal::{Journal, Round, noted},
};
use storage::session::{
    sessions_lock::{LockedSession, SessionThread},
    turns_record::{ItemChange, SessionChange, TurnChange, TurnRecord},
};

/// The error class of a stopped turn whose agent may still run.
const STOP_UNCONFIRMED: &str = "stop_unconfirmed";

/// All changes of one report.
#[derive(Debug)]
pub struct Change {
    pub turn: TurnChange,
    pub session: SessionChange,
    pub items: Vec<ItemChange>,
    /// The session has more work at once.
    pub more: bool,
    /// Its generation ends with the turn.
    pub reset: Option<Reset>,
}

/// A reset that has waited for the end of the turn.
#[derive(Debug)]
pub struct Reset {
    pub request: ResetRequest,
    /// The turn's items that wait again, for the next generation.
    pub put_back: Vec<String>,
    /// What keeps the next generation's queue.
    pub gate: Option<Gate>,
}

/// The row changes of the settled outcome.
pub(super) fn change(
    report: &Report,
    session: &LockedSession,
    settled: &Settled,
    now: OffsetDateTime,
    config: &DeliverySettings,
) -> Result<Change, ImpossibleStep> {
    let work = &report.work;
    let step = settled.step();
    let state = work.state.after(step)?;
    let phase = session.facts.state().on(settled.event())?.phase;
    let (error, class) = settled.error().unzip();
    let turn = TurnChange {
        account_id: work.turn.account.clone(),
        id: work.turn.id,
        fence: work.turn.fence,
        state,
        sources: step.sources(),
        over: state.is_over(),
        round: None,
        attempt: work.attempt,
        failed_epoch: match report.said().map(|said| said.sign) {
            Some(Sign::Good) => None,
            Some(Sign::Bad(_)) => Some(work.pass.epoch),
            Some(Sign::Neither) | None => work.failed_epoch,
        },
        failures: if error.is_some() {
            work.failures + i32::from(settled.counts())
        } else {
            0
        },
        calls_requested: work.journal.requested(),
        waits: false,
        lost: false,
        response_id: None,
        reply: None,
        posted_as: None,
        usage: None,
        error: error.map(str::to_owned),
        error_class: class.map(str::to_owned),
        late: session.facts.closed,
        context: None,
    };
    let rest = SessionChange {
        account_id: work.turn.account.clone(),
        id: work.turn.session,
        phase,
        keeps_turn: !state.is_over(),
        wake_ms: None,
        asked: None,
        queued: 0,
        interrupted: false,
        mismatch: report.mismatch.clone(),
        stopped: None,
        gate: None,
        streak: None,
        streak_key: None,
        streak_since: None,
        beats: false,
        thread: session.thread.clone(),
        goes_on: false,
    };
    let mut change = Change {
        turn,
        session: rest,
        items: Vec::new(),
        more: session.facts.queued > 0 && !session.facts.closed,
        reset: None,
    };
    match settled {
        Settled::Finished {
            reply,
            response_id,
            usage,
            note,
            late,
            by_tool: _,
        } => {
            change.turn.reply = Some(reply.clone());
            // A branch's reply is its result, a replay's is only shown.
            let is_posted = session.branch.is_none() && session.replay.is_none();
            let speaks = !late && !reply.trim().is_empty() && is_posted;
            change.turn.posted_as = speaks.then(|| reply_message_id(work.turn.id));
            change.turn.response_id.clone_from(response_id);
            change.turn.usage = total(&work.journal, *usage);
            change.turn.error.clone_from(note);
            change.turn.late = *late;
            change.streak(work, session, now);
            change.items = vec![items(work, NotificationState::Delivered, None)];
        }
        Settled::AwaitTools { round } => change.await_tools(work, round, config),
        Settled::Again {
            after, repeats, counts, ..
        } => change.again(work, *after, *repeats, *counts),
        Settled::FreshStart { after, .. } => change.again(work, *after, false, false),
        Settled::LookAgain { after } => change.look_again(work, *after),
        Settled::Interrupted { after, counts, .. } => change.interrupted(work, *after, *counts),
        Settled::GaveUp {
            error,
            class,
            interrupted,
        } => {
            change.session.interrupted = *interrupted;
            change.end(report, NotificationState::Failed, format!("{class}: {error}"));
        }
        Settled::Aborted => change.aborted(work, ended_because(session)),
        Settled::Stopped {
            kind,
            because,
            confirmed,
            usage,
        } => {
            let class = if *confirmed { kind.as_str() } else { STOP_UNCONFIRMED };
            change.turn.error = Some(because.clone());
            change.turn.error_class = Some(class.to_owned());
            change.turn.usage = total(&work.journal, *usage);
            change.turn.failures = work.failures;
            let unsent = matches!(report.outcome, CallOutcome::NotSent) && work.journal.last().is_none();
            change.session.stopped = Some(work.told_of.filter(|_| unsent).unwrap_or(work.turn.id));
            change.session.interrupted = !confirmed;
            match requeues(session) {
                true => change.put_back(work),
                false => change.end(report, NotificationState::Cancelled, because.clone()),
            }
            let holds = session.stop().is_some_and(|stop| stop.then == StopThen::Hold);
            if holds && change.more {
                change.session.phase = session.facts.state().on(SessionEvent::Parked)?.phase;
                change.session.gate = Some(Gate::Stopped);
                change.more = false;
            }
        }
    }
    if change.turn.over && !was_answered(report) {
        // The session's next turn brings the notes that this one's agent may not have read.
        change.session.interrupted |= work.told_interrupted;
        change.session.stopped = change.session.stopped.or(work.told_of);
    }
    change.reset(session, phase);
    let messages_max = config.thread_messages_max.usize();
    (change.session.thread, change.turn.context) = thread_after(report, session, settled, &change.turn, messages_max);
    Ok(change)
}

/// The items of the stopped turn go to the next generation. A later request to stop has another kind, which decides.
fn requeues(session: &LockedSession) -> bool {
    let by_reset = session.stop().is_some_and(|stop| stop.kind == StopKind::Reset);
    let request = session.reset.as_ref().filter(|_| by_reset && !session.facts.closed);
    request.is_some_and(|request| request.in_flight == ResetInFlight::Requeue)
}

/// The session's thread after this record, and the turn's context, if it changes.
fn thread_after(
    report: &Report,
    session: &LockedSession,
    settled: &Settled,
    turn: &TurnChange,
    messages_max: usize,
) -> (SessionThread, Option<TurnContext>) {
    let (work, of) = (&report.work, &report.work.thread);
    let mut thread = session.thread.clone();
    let mut context = None;
    let is_denied = report.unconfirmed.is_some();
    let began = Told::moment(begun_at(work.turn.id));
    if let (Settled::FreshStart { .. }, Some(before)) = (settled, &of.context) {
        lose(&mut thread);
        thread.number += 1;
        context = Some(TurnContext {
            reason: Some(ContextReason::ThreadLost),
            thread: thread.number,
            from: None,
            lost_after: Some(u32::try_from(work.journal.rounds.len()).unwrap_or(u32::MAX)),
            unconfirmed: before.unconfirmed || is_denied,
            ..before.clone()
        });
    } else if let CallOutcome::Answered(answer) = &report.outcome {
        let told = turn.posted_as.into_iter().chain(of.shown.iter().copied());
        thread
            .told
            .show(told.collect(), messages_max.saturating_add(TOLD_BESIDES));
        thread.told.rotated = None;
        let is_reply = matches!(settled, Settled::Finished { .. });
        match (of.keeps, of.found_by) {
            (Thread::Durable, Continuation::Key) => {
                thread.live = true;
                thread.told.at = Some(began);
            }
            // What broke off before the final answer is not in the thread.
            (Thread::Durable, Continuation::Response) if is_reply => {
                thread.at.clone_from(&answer.response_id);
                thread.live = thread.at.is_some();
                thread.told.at = Some(began);
            }
            (Thread::Durable, Continuation::Response | Continuation::Whole) => {}
            (Thread::Process | Thread::None, _) => {
                thread.live = false;
                thread.told.provider = None;
            }
        }
        let has_lost = of.context.as_ref().is_some_and(|context| context.lost_after.is_some());
        let is_nameless = is_reply && of.keeps == Thread::Durable && !thread.live;
        if is_denied || is_nameless {
            lose(&mut thread);
        } else if is_reply && !has_lost && thread.lost < THREADS_LOST_MAX {
            thread.lost = 0;
        }
        if report.mismatch.is_some() {
            thread.live = false;
        }
        if is_denied {
            context = of.context.clone().map(|context| TurnContext {
                unconfirmed: true,
                ..context
            });
        }
    } else if turn.over && !was_answered(report) {
        // Its agent may not have read the texts that went along: they come again.
        thread.told.forget(&of.texts);
    }
    let is_response = (of.keeps, of.found_by) == (Thread::Durable, Continuation::Response);
    let has_reply = matches!(report.outcome, CallOutcome::Answered(_)) && matches!(settled, Settled::Finished { .. });
    if turn.over && is_response && !has_reply {
        // The next turn cannot go on from an answer of this turn: nothing that this one was told is in a thread.
        if let CallOutcome::EndedByTool { .. } = report.outcome {
            // The thread is there, and has no name to go on by: what the turn has done is told with the past. It counts as no loss.
            thread.live = true;
            thread.at = None;
            thread.told.ids.clear();
        }
        thread.told.ids.retain(|id| !of.shown.contains(id));
        thread.told.forget(&of.texts);
    }
    if turn.over {
        let used = turn.usage.clone().or_else(|| total(&work.journal, None));
        let used: Option<Usage> = used.and_then(|usage| serde_json::from_value(usage).ok());
        let tokens = used.map_or(0, |usage| {
            usage
                .total_tokens
                .max(usage.input_tokens.saturating_add(usage.output_tokens))
        });
        thread.tokens = thread.tokens.saturating_add(i64::try_from(tokens).unwrap_or(i64::MAX));
        thread.failures = failures_after(thread.failures, settled);
    }
    if session.facts.closed {
        // A closed generation keeps no thread.
        thread.at = None;
    }
    (thread, context)
}

/// Remembered besides the messages that a prompt may show: the reply, and the message that the item was about. Thus no message that
/// the next prompt could show is forgotten.
const TOLD_BESIDES: usize = 2;

/// The thread is gone. What it was told besides its turns is told again; the texts that seldom change go along with the past.
fn lose(thread: &mut SessionThread) {
    thread.live = false;
    thread.at = None;
    thread.lost = thread.lost.saturating_add(1);
    thread.told.ids.clear();
}

/// Classes of failures that are their provider's: no failures of a generation (its rule of rotation).
const OF_THE_PROVIDER: [FailureClass; 6] = [
    FailureClass::Refused,
    FailureClass::RateLimited,
    FailureClass::Quota,
    FailureClass::Unauthorized,
    FailureClass::AgentUnauthorized,
    FailureClass::ServerError,
];

/// The generation's turns in a row that failed by themselves, after one that has ended.
fn failures_after(before: i32, settled: &Settled) -> i32 {
    match settled {
        Settled::Finished { .. } => 0,
        Settled::GaveUp { class, .. } | Settled::Interrupted { class, .. } => {
            let is_providers = OF_THE_PROVIDER.iter().any(|of| of.as_str() == *class);
            before.saturating_add(i32::from(!is_providers))
        }
        Settled::AwaitTools { .. }
        | Settled::Again { .. }
        | Settled::FreshStart { .. }
        | Settled::LookAgain { .. }
        | Settled::Aborted
        | Settled::Stopped { .. } => before,
    }
}

/// Whether the turn had an answer to one of its calls. If not, its agent may not have read the notes in its prompt.
fn was_answered(report: &Report) -> bool {
    let ends = matches!(
        report.outcome,
        CallOutcome::Answered(_) | CallOutcome::EndedByTool { .. }
    );
    ends || report.work.journal.last().is_some()
}

impl Change {
    pub(super) fn record(&self) -> TurnRecord<'_> {
        TurnRecord {
            turn: &self.turn,
            session: &self.session,
            items: &self.items,
        }
    }

    fn await_tools(&mut self, work: &Work, round: &Round, config: &DeliverySettings) {
        let mut journal = work.journal.clone();
        journal.rounds.push(round.clone());
        // Calls that delivery answered itself need no wake-up.
        self.more = journal.requested() == work.journal.requested();
        self.turn.attempt = work.attempt + 1;
        self.turn.calls_requested = journal.requested();
        self.turn.waits = true;
        self.turn.usage = total(&journal, None);
        self.turn.round = Some(serde_json::to_value(round).expect("a round serialises: texts and numbers"));
        self.session.wake_ms = Some(config.tools_again_ms.i64());
        self.session.asked = noted(&round.due(|_| false));
    }

    /// The session's turns without progress, as if this one made none: the record knows what its tools did.
    fn streak(&mut self, work: &Work, session: &LockedSession, now: OffsetDateTime) {
        // An older version began the turn.
        let Some(wake) = &work.wake else { return };
        let streak = session.streak.after(wake, Deeds::default(), now);
        self.session.streak = Some(streak.turns);
        self.session.streak_key = streak.key;
        self.session.streak_since = streak.since;
        self.session.beats = wake.is_heartbeat();
    }

    fn again(&mut self, work: &Work, after: Duration, repeats: bool, counts: bool) {
        self.turn.attempt = if repeats { work.attempt } else { work.attempt + 1 };
        self.session.wake_ms = Some(millis(after));
        self.more = after.is_zero();
        self.items = unused(work, tried(work, NotificationState::Running, counts));
    }

    fn look_again(&mut self, work: &Work, after: Duration) {
        self.turn.failures = work.failures;
        self.turn.lost = true;
        self.session.wake_ms = Some(millis(after));
        self.more = false;
    }

    fn interrupted(&mut self, work: &Work, after: Duration, counts: bool) {
        self.session.wake_ms = Some(millis(after));
        self.session.queued = count(&work.notification_ids);
        self.session.interrupted = true;
        self.more = false;
        self.items = unused(work, tried(work, NotificationState::Queued, counts));
    }

    fn aborted(&mut self, work: &Work, because: &str) {
        self.turn.error = Some(because.to_owned());
        self.turn.error_class = Some("session_closed".to_owned());
        self.items = vec![items(work, NotificationState::Cancelled, Some(because.to_owned()))];
    }

    /// Ends the turn's items without a reply. Those that went with a call without an answer go back to their places: their
    /// agent may not have seen them.
    fn end(&mut self, report: &Report, state: NotificationState, reason: String) {
        let (work, closed) = (&report.work, self.turn.late);
        let ended = items(work, state, Some(reason));
        if matches!(report.outcome, CallOutcome::Answered(_)) || closed || work.injected.is_empty() {
            self.items = vec![ended];
            return;
        }
        self.items = unused(work, ended);
        let back = self.items.last_mut().expect("an outcome for the injected ones");
        (back.state, back.reason) = (NotificationState::Queued, None);
        // It may be the one that the provider refused: its next try is a turn of its own.
        back.attempts_more = i32::from(state == NotificationState::Failed);
        self.session.queued = count(&work.injected);
        self.more = true;
    }

    /// All of the turn's items wait again, at the head of the queue. A stop is no attempt.
    fn put_back(&mut self, work: &Work) {
        self.items = vec![tried(work, NotificationState::Queued, false)];
        self.session.queued = count(&work.notification_ids);
    }

    /// The generation ends with its turn: nothing starts in it. `rests`: its phase without a gate.
    fn reset(&mut self, session: &LockedSession, rests: SessionPhase) {
        let Some(request) = session
            .reset
            .clone()
            .filter(|_| self.turn.over && !session.facts.closed)
        else {
            return;
        };
        let put_back = match request.in_flight {
            ResetInFlight::Requeue => self.waiting().cloned().collect(),
            ResetInFlight::Cancel => Vec::new(),
        };
        self.more = false;
        self.session.phase = rests;
        self.reset = Some(Reset {
            request,
            put_back,
            gate: self.session.gate.take(),
        });
    }

    /// The ids of the items that wait again.
    fn waiting(&self) -> impl Iterator<Item = &String> {
        let waiting = self
            .items
            .iter()
            .filter(|items| items.state == NotificationState::Queued);
        waiting.flat_map(|items| &items.notification_ids)
    }

    /// The ids of the items that ended as failed or cancelled.
    pub fn ended(&self) -> impl Iterator<Item = &String> {
        let ended =
            |items: &&ItemChange| matches!(items.state, NotificationState::Failed | NotificationState::Cancelled);
        self.items
            .iter()
            .filter(ended)
            .flat_map(|items| &items.notification_ids)
    }
}

/// The same outcome; it is no attempt for the items that went with a call without an answer, which come last.
fn unused(work: &Work, mut outcome: ItemChange) -> Vec<ItemChange> {
    if work.injected.is_empty() {
        return vec![outcome];
    }
    outcome.notification_ids.retain(|id| !work.injected.contains(id));
    let injected = ItemChange {
        notification_ids: work.injected.clone(),
        attempts_more: 0,
        ..outcome.clone()
    };
    vec![outcome, injected]
}

fn count(notifications: &[String]) -> i32 {
    i32::try_from(notifications.len()).expect("notifications of a turn are few")
}

fn items(work: &Work, state: NotificationState, reason: Option<String>) -> ItemChange {
    ItemChange {
        account_id: work.turn.account.clone(),
        turn_id: work.turn.id,
        notification_ids: work.notification_ids.clone(),
        state,
        reason,
        attempts_more: 1,
    }
}

/// Items that are tried again. `counts`: the try before was an attempt.
fn tried(work: &Work, state: NotificationState, counts: bool) -> ItemChange {
    ItemChange {
        attempts_more: i32::from(counts),
        ..items(work, state, None)
    }
}

/// Why a turn ended with its session, in the text of the session's cancelled items.
pub(super) fn ended_because(session: &LockedSession) -> &'static str {
    match session.close_reason.as_deref().and_then(CloseReason::parse) {
        Some(CloseReason::AgentRemoved) => AGENT_REMOVED,
        Some(CloseReason::MemberRemoved) => MEMBER_REMOVED,
        Some(CloseReason::Unreachable) => UNREACHABLE,
        Some(CloseReason::HandedOver) => HANDED_OVER,
        Some(CloseReason::Reset) => SESSION_RESET,
        Some(CloseReason::Folded | CloseReason::Cancelled | CloseReason::Expired) => BRANCH_ENDED,
        Some(CloseReason::Rotated | CloseReason::Replayed) => "session closed",
        Some(CloseReason::TaskDone | CloseReason::TaskCancelled | CloseReason::TaskArchived) | None => TASK_CLOSED,
    }
}

/// The provider's counts in the turn, the last answer included.
fn total(journal: &Journal, last: Option<Usage>) -> Option<serde_json::Value> {
    let sum = match (journal.usage(), last) {
        (Some(before), Some(last)) => Some(before.plus(last)),
        (before, last) => before.or(last),
    };
    sum.map(|tokens| serde_json::to_value(tokens).expect("token counts serialise"))
}
