//! Recording outcomes: one transaction for all turns that ended close together. Locks their sessions, checks each fence,
//! asks [`settle`] what the outcome means, writes it, and says which sessions have more to do.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use contracts::{
    Root,
    event::{EVENT_REPLY_BYTES_MAX, Event, NotificationEnded, ProviderSessionMismatched, TurnFinished},
};
use domain::{
    CloseReason, NotificationId, NotificationState, SessionPhase, TurnId, TurnState,
    planted::{Bug, is_planted},
};
use runtime::{Outbox, Shutdown};
use storage::{
    Accounts, Database, StorageError, Tx,
    dead_letter::{Given, dead_letter_insert},
    lifecycle::{AGENT_REMOVED, Setting, TASK_CLOSED},
    outbox::{Owned, outbox_insert},
};
use time::OffsetDateTime;

use super::{
    call::Report,
    claim::tool_requested,
    journal::{Journal, Tokens},
    settle::{Facts, Settled, settle},
    work::Work,
};
use crate::{
    SOURCE,
    config::Config,
    metrics::Metrics,
    store::{
        SessionName,
        claim::{Session, sessions_lock},
        record::{Changed, ItemChange, SessionChange, TurnChange, items_change, sessions_change, turns_change},
        refused::{Refused, notifications_load},
    },
};

#[derive(Clone)]
pub struct Recorder {
    pub database: Database,
    pub root: Root,
    pub config: Arc<Config>,
    pub metrics: Metrics,
    pub outbox: Outbox,
    /// For its crash points.
    pub shutdown: Shutdown,
}

/// What came of a batch of reports.
#[derive(Default)]
pub struct Recorded {
    /// Sessions, and whether there is more for them now.
    pub free: Vec<(SessionName, bool)>,
}

/// A report under a fence that is still ours, and what it means.
#[derive(Debug)]
pub struct Decided<'a> {
    pub report: &'a Report,
    pub session: &'a Session,
    pub settled: Settled,
    pub change: Change,
}

/// Everything that one report leads to.
#[derive(Debug)]
pub struct Change {
    pub turn: TurnChange,
    pub session: SessionChange,
    pub items: Option<ItemChange>,
    /// The session has more to do at once.
    pub more: bool,
}

impl Recorder {
    /// Writes all reports or none. Safe to repeat, also when a commit was not answered: a turn that was written is not in
    /// flight any more.
    pub async fn record(&self, reports: &[Report]) -> Result<Recorded, StorageError> {
        let names: Vec<SessionName> = reports.iter().map(|report| report.work.name()).collect();
        let tx = self
            .database
            .begin(&Accounts::many(names.iter().map(|(account, _)| account)))
            .await?;
        let sessions: HashMap<SessionName, Session> = sessions_lock(&tx, &names)
            .await?
            .into_iter()
            .map(|session| (session.name(), session))
            .collect();
        let now = OffsetDateTime::now_utc();
        let mut recorded = Recorded::default();
        let mut decided = Vec::with_capacity(reports.len());
        for report in reports {
            // A newer fence: somebody took the session over and carries the turn on. A normal outcome.
            match sessions
                .get(&report.work.name())
                .filter(|session| session.fence == report.work.fence || is_planted(Bug::FenceDropped))
            {
                Some(session) => decided.push(decide(report, session, now, &self.config)),
                None => {
                    self.metrics.stale();
                    let (turn_id, fence) = (report.work.turn_id, report.work.fence);
                    tracing::info!(%turn_id, %fence, "an outcome came too late: another replica holds the session");
                    recorded.free.push((report.work.name(), true));
                }
            }
        }
        let turns: Vec<TurnChange> = decided.iter().map(|decided| decided.change.turn.clone()).collect();
        let mut written: HashMap<TurnId, Changed> = turns_change(&tx, &turns)
            .await?
            .into_iter()
            .map(|changed| (TurnId(changed.id), changed))
            .collect();
        let decided: Vec<(Decided<'_>, Changed)> = decided
            .into_iter()
            .filter_map(|decided| {
                let work = &decided.report.work;
                let changed = written.remove(&work.turn_id);
                // Ours by its fence and not in flight any more: written by an earlier try whose commit was not answered.
                recorded
                    .free
                    .push((work.name(), changed.is_none() || decided.change.more));
                Some((decided, changed?))
            })
            .collect();
        let sessions: Vec<SessionChange> = decided
            .iter()
            .map(|(decided, _)| decided.change.session.clone())
            .collect();
        sessions_change(&tx, &sessions).await?;
        let items: Vec<ItemChange> = decided
            .iter()
            .filter_map(|(decided, _)| decided.change.items.clone())
            .collect();
        let ended = items_change(&tx, &items).await?;
        let mut messages = Vec::new();
        for (
            Decided {
                report,
                session,
                settled,
                ..
            },
            changed,
        ) in &decided
        {
            messages.extend(self.messages(report, session, settled, changed, &ended, now));
            if let Settled::GaveUp { error, class, .. } = settled {
                messages.extend(self.bury(&tx, &report.work, error, class, now).await?);
            }
        }
        let outbox = outbox_insert(&tx, messages).await?;
        if is_planted(Bug::PublishFirst) {
            self.outbox.publish_soon(outbox.clone());
        }
        self.shutdown.crash_point("delivery.outcome_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("delivery.outcome_committed").await;
        self.outbox.publish_soon(outbox);
        for (Decided { report, settled, .. }, changed) in &decided {
            self.metrics.settled(&report.work, settled, changed);
            log(&report.work, settled, changed);
        }
        Ok(recorded)
    }

    fn messages(
        &self,
        report: &Report,
        session: &Session,
        settled: &Settled,
        changed: &Changed,
        ended: &HashSet<(TurnId, String)>,
        now: OffsetDateTime,
    ) -> Vec<Owned> {
        let work = &report.work;
        let setting = Setting {
            root: &self.root,
            source: SOURCE,
            origin: work.origin(),
            now,
        };
        let mut messages = Vec::new();
        if let Some(detail) = &report.mismatch {
            let event = Event::ProviderSessionMismatched(ProviderSessionMismatched {
                turn_id: work.turn_id,
                session_id: work.session_id,
                session_key: work.session_key.clone(),
                generation: work.generation,
                fence: work.fence,
                detail: detail.clone(),
            });
            messages.push(setting.event(&work.account, work.task.as_ref(), &work.turn_id.to_string(), event));
        }
        match settled {
            Settled::AwaitTools { round } => {
                let passed_on = round.calls.iter().filter(|call| call.answered.is_none());
                messages.extend(passed_on.map(|call| {
                    tool_requested(
                        &self.root,
                        session,
                        work.turn_id,
                        work.task.as_ref(),
                        work.agent_id,
                        call,
                        &setting.origin,
                        now,
                    )
                }));
            }
            Settled::Again { .. } | Settled::LookAgain { .. } => {}
            Settled::Finished { .. } | Settled::Interrupted { .. } | Settled::GaveUp { .. } | Settled::Aborted => {
                let event = Event::TurnFinished(turn_finished(work, session, settled, changed));
                messages.push(setting.event(&work.account, work.task.as_ref(), &work.turn_id.to_string(), event));
            }
        }
        if let Settled::Aborted = settled {
            let ours = |id: &&String| ended.contains(&(work.turn_id, (*id).clone()));
            messages.extend(work.notification_ids.iter().filter(ours).map(|id| {
                let ended = NotificationEnded {
                    id: NotificationId::parse(id).ok(),
                    agent: Some(work.agent_id.to_string()),
                    reason: "cancelled".to_owned(),
                    detail: ended_because(session).to_owned(),
                    dead_letter_id: None,
                };
                setting.event(
                    &work.account,
                    work.task.as_ref(),
                    id,
                    Event::NotificationCancelled(ended),
                )
            }));
        }
        messages
    }

    /// Dead letters of a turn that was given up: the notifications themselves, so that they can be sent again.
    async fn bury(
        &self,
        tx: &Tx,
        work: &Work,
        error: &str,
        class: &str,
        now: OffsetDateTime,
    ) -> Result<Vec<Owned>, StorageError> {
        let mut messages = Vec::new();
        for Refused {
            id,
            headers,
            payload,
            subject,
        } in notifications_load(tx, &self.root, &work.account, &work.notification_ids).await?
        {
            let given = Given {
                account: Some(&work.account),
                task: work.task.as_ref(),
                subject: &subject,
                headers: &headers,
                payload: &payload,
                reason: class,
                detail: error,
                attempts: work.attempts + 1,
                origin: work.origin(),
                at: now,
            };
            let (letter, message) = dead_letter_insert(tx, &self.root, &given).await?;
            let ended = NotificationEnded {
                id: NotificationId::parse(&id).ok(),
                agent: Some(work.agent_id.to_string()),
                reason: class.to_owned(),
                detail: error.to_owned(),
                dead_letter_id: Some(letter),
            };
            let setting = Setting {
                root: &self.root,
                source: SOURCE,
                origin: work.origin(),
                now,
            };
            messages.push(message);
            // A redriven notification may fail again: the letter tells the two events apart.
            messages.push(setting.event(
                &work.account,
                work.task.as_ref(),
                &letter.to_string(),
                Event::NotificationFailed(ended),
            ));
        }
        Ok(messages)
    }
}

/// What a report means for its session, which is locked and whose fence is the report's own. Pure.
pub fn decide<'a>(report: &'a Report, session: &'a Session, now: OffsetDateTime, config: &Config) -> Decided<'a> {
    let work = &report.work;
    let facts = Facts {
        effects: work.effects,
        closed: session.facts.closed,
        failures: work.failures,
        rounds: i32::try_from(work.journal.rounds.len()).expect("rounds of a turn are limited"),
        calls_before: i32::try_from(work.journal.calls().count()).expect("calls of a turn are limited"),
        ordinal_before: work.journal.last_ordinal(),
        attempts: work.attempts,
        lost_for: work.lost_for(now),
    };
    let settled = settle(&report.outcome, &facts, &config.settle());
    let change = change(report, session, &settled, config);
    Decided {
        report,
        session,
        settled,
        change,
    }
}

/// What the settled outcome makes of the three rows.
fn change(report: &Report, session: &Session, settled: &Settled, config: &Config) -> Change {
    let work = &report.work;
    let calls = work.journal.requested();
    let mut turn = TurnChange {
        account_id: work.account.clone(),
        id: work.turn_id,
        fence: if is_planted(Bug::FenceDropped) {
            session.fence.0
        } else {
            work.fence.0
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
        id: work.session_id.uuid(),
        phase: SessionPhase::Idle,
        keeps_turn: false,
        wake_ms: None,
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
            rest.wake_ms = Some(config.tools_again_ms);
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
fn ended_because(session: &Session) -> &'static str {
    match session.close_reason {
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

fn turn_finished(work: &Work, session: &Session, settled: &Settled, changed: &Changed) -> TurnFinished {
    let (state, reply, late, error) = match settled {
        Settled::Finished { reply, late, note, .. } => (TurnState::Finished, Some(reply.clone()), *late, note.clone()),
        Settled::Interrupted { state, error, .. } => (*state, None, false, Some(error.clone())),
        Settled::GaveUp { error, .. } => (TurnState::Failed, None, false, Some(error.clone())),
        Settled::Aborted | Settled::AwaitTools { .. } | Settled::Again { .. } | Settled::LookAgain { .. } => {
            (TurnState::Aborted, None, true, Some(ended_because(session).to_owned()))
        }
    };
    let reply_cut = reply.as_ref().is_some_and(|reply| reply.len() > EVENT_REPLY_BYTES_MAX);
    TurnFinished {
        turn_id: work.turn_id,
        session_id: work.session_id,
        session_key: work.session_key.clone(),
        generation: work.generation,
        fence: work.fence,
        number: work.number,
        agent_id: work.agent_id,
        notifications: work
            .notification_ids
            .iter()
            .filter_map(|id| NotificationId::parse(id).ok())
            .collect(),
        state,
        reply: reply.map(|reply| cut(reply, EVENT_REPLY_BYTES_MAX)),
        reply_cut,
        no_reply: changed.no_reply,
        late,
        attempts: work.attempts + 1,
        error,
    }
}

fn cut(mut text: String, bytes_max: usize) -> String {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// One line a turn (S13): sizes and ids, never texts of the conversation.
fn log(work: &Work, settled: &Settled, changed: &Changed) {
    let (what, class) = match settled {
        Settled::Finished { late: true, .. } => ("finished late", ""),
        Settled::Finished { .. } => ("finished", ""),
        Settled::AwaitTools { .. } => ("waits for tools", ""),
        Settled::Again { class, .. } => ("will be tried again", *class),
        Settled::LookAgain { .. } => ("is being looked up", ""),
        Settled::Interrupted { class, .. } => ("was interrupted", *class),
        Settled::GaveUp { class, .. } => ("failed", *class),
        Settled::Aborted => ("was aborted", ""),
    };
    tracing::info!(
        turn_id = %work.turn_id, account = %work.account, session_id = %work.session_id, generation = work.generation.0,
        number = work.number, attempt = work.attempt, round = work.journal.rounds.len(), profile_version = %work.profile_version,
        task_history_called = changed.task_history_called, class,
        "turn {} {what}", work.number
    );
}
