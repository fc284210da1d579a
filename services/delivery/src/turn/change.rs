//! Converts a settled outcome into the changes of the turn's, the session's and the notifications' rows. Pure.

use std::time::Duration;

use domain::{
    CloseReason, Gate, HANDED_OVER, ImpossibleStep, NotificationState, SESSION_RESET, SessionEvent, StopThen, TASK_CLOSED,
    breaker::Sign, progress::Deeds,
};
use storage::{lifecycle::reply_message_id, session::sessions_close::AGENT_REMOVED};
use time::OffsetDateTime;

use super::{
    call::Report,
    settle::{CallOutcome, Settled},
    starter::millis,
    work::Work,
};
use crate::{
    providers::Usage,
    settings::DeliverySettings,
    store::journal::{Journal, Round},
};
use storage::session::{
    sessions_lock::LockedSession,
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
        goes_on: false,
    };
    let mut change = Change {
        turn,
        session: rest,
        items: Vec::new(),
        more: session.facts.queued > 0 && !session.facts.closed,
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
            let speaks = !late && !reply.trim().is_empty();
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
            change.end(report, NotificationState::Cancelled, because.clone());
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
    Ok(change)
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
        self.session.asked = round.first().map(|call| call.ordinal);
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
        Some(CloseReason::HandedOver) => HANDED_OVER,
        Some(CloseReason::Reset) => SESSION_RESET,
        Some(CloseReason::Cancelled) => "branch cancelled",
        Some(CloseReason::Rotated | CloseReason::Folded | CloseReason::Expired | CloseReason::Replayed) => "session closed",
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
