//! What a settled outcome makes of the three rows: the turn's, its session's and its notifications'. Pure.

use domain::{
    CloseReason, NotificationState, SessionPhase, TurnState,
    planted::{Bug, is_planted},
};
use storage::lifecycle::{AGENT_REMOVED, TASK_CLOSED};

use super::{
    call::Report,
    journal::{Journal, Tokens},
    settle::Settled,
};
use crate::{
    settings::DeliverySettings,
    store::{
        claim::Session,
        record::{ItemChange, SessionChange, TurnChange, TurnRecord},
    },
};

/// Everything that one report leads to.
#[derive(Debug)]
pub struct Change {
    pub turn: TurnChange,
    pub session: SessionChange,
    pub items: Option<ItemChange>,
    /// The session has more to do at once.
    pub more: bool,
}

impl Change {
    pub(super) fn record(&self) -> TurnRecord<'_> {
        TurnRecord {
            turn: &self.turn,
            session: &self.session,
            items: self.items.as_ref(),
        }
    }
}

/// What the settled outcome makes of the three rows.
pub(super) fn change(report: &Report, session: &Session, settled: &Settled, config: &DeliverySettings) -> Change {
    let work = &report.work;
    let calls = work.journal.requested();
    let mut turn = TurnChange {
        account_id: work.account.clone(),
        id: work.turn_id,
        fence: if is_planted(Bug::FenceDropped) {
            session.fence
        } else {
            work.fence
        },
        state: TurnState::Finished,
        round: None,
        attempt: work.attempt,
        failures: 0,
        calls_requested: calls,
        waits: false,
        lost: false,
        response_id: None,
        reply: None,
        usage: None,
        error: None,
        error_class: None,
        late: session.facts.closed,
    };
    let mut rest = SessionChange {
        account_id: work.account.clone(),
        id: work.session_id,
        phase: SessionPhase::Idle,
        keeps_turn: false,
        wake_ms: None,
        asked: None,
        queued: 0,
        interrupted: false,
        mismatch: report.mismatch.clone(),
    };
    let item = |state, reason: Option<String>| {
        Some(ItemChange {
            account_id: work.account.clone(),
            turn_id: work.turn_id,
            notification_ids: work.notification_ids.clone(),
            state,
            reason,
            attempts_more: 1,
        })
    };
    let millis = |duration: &std::time::Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let mut more = session.facts.queued > 0 && !session.facts.closed;
    let items = match settled {
        Settled::Finished {
            reply,
            response_id,
            usage,
            note,
            late,
        } => {
            turn.reply = Some(reply.clone());
            turn.response_id.clone_from(response_id);
            turn.usage = total(&work.journal, *usage);
            turn.error.clone_from(note);
            turn.late = *late;
            item(NotificationState::Delivered, None)
        }
        Settled::AwaitTools { round } => {
            let mut journal = work.journal.clone();
            journal.rounds.push(round.clone());
            turn.state = TurnState::AwaitingTools;
            turn.attempt = work.attempt + 1;
            turn.calls_requested = journal.requested();
            turn.waits = true;
            turn.usage = total(&journal, None);
            turn.round = Some(serde_json::to_value(round).expect("a round is texts and numbers"));
            rest.phase = SessionPhase::Waiting;
            rest.keeps_turn = true;
            rest.wake_ms = Some(config.tools_again_ms.i64());
            rest.asked = round.first().map(|call| call.ordinal);
            // Calls that we answered ourselves need no waking.
            more = turn.calls_requested == calls;
            None
        }
        Settled::Again {
            after,
            repeats,
            error,
            class,
        } => {
            turn.state = TurnState::Started;
            turn.attempt = if *repeats { work.attempt } else { work.attempt + 1 };
            turn.failures = work.failures + 1;
            turn.error = Some(error.clone());
            turn.error_class = Some((*class).to_owned());
            rest.phase = SessionPhase::Backoff;
            rest.keeps_turn = true;
            rest.wake_ms = Some(millis(after));
            more = after.is_zero();
            item(NotificationState::Running, None)
        }
        Settled::LookAgain { after } => {
            turn.state = TurnState::Calling;
            turn.failures = work.failures;
            turn.lost = true;
            rest.phase = SessionPhase::Backoff;
            rest.keeps_turn = true;
            rest.wake_ms = Some(millis(after));
            more = false;
            None
        }
        Settled::Interrupted {
            state,
            after,
            error,
            class,
        } => {
            turn.state = *state;
            turn.failures = work.failures + 1;
            turn.error = Some(error.clone());
            turn.error_class = Some((*class).to_owned());
            rest.phase = SessionPhase::Backoff;
            rest.wake_ms = Some(millis(after));
            rest.queued = i32::try_from(work.notification_ids.len()).expect("notifications of a turn are few");
            rest.interrupted = true;
            more = false;
            item(NotificationState::Queued, None)
        }
        Settled::GaveUp {
            error,
            class,
            interrupted,
        } => {
            rest.interrupted = *interrupted;
            turn.state = TurnState::Failed;
            turn.failures = work.failures + 1;
            turn.error = Some(error.clone());
            turn.error_class = Some((*class).to_owned());
            item(NotificationState::Failed, Some(format!("{class}: {error}")))
        }
        Settled::Aborted => {
            turn.state = TurnState::Aborted;
            turn.error = Some(ended_because(session).to_owned());
            turn.error_class = Some("session_closed".to_owned());
            item(NotificationState::Cancelled, Some(ended_because(session).to_owned()))
        }
    };
    Change {
        turn,
        session: rest,
        items,
        more,
    }
}

/// Why a turn ended with its session, in the words that its waiting items got.
pub(super) fn ended_because(session: &Session) -> &'static str {
    match session.close_reason.as_deref().and_then(CloseReason::parse) {
        Some(CloseReason::AgentRemoved) => AGENT_REMOVED,
        Some(CloseReason::Reset | CloseReason::Rotated) => "session closed",
        Some(CloseReason::TaskDone | CloseReason::TaskCancelled | CloseReason::TaskArchived) | None => TASK_CLOSED,
    }
}

/// All that the provider counted in the turn, the last answer included.
fn total(journal: &Journal, last: Option<Tokens>) -> Option<serde_json::Value> {
    let sum = match (journal.usage(), last) {
        (Some(before), Some(last)) => Some(before.plus(last)),
        (before, last) => before.or(last),
    };
    sum.map(|tokens| serde_json::to_value(tokens).expect("tokens are numbers"))
}
