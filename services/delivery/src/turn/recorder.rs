//! Records outcomes: one transaction for all turns that ended close together. Locks their sessions, checks each fence,
//! applies [`settle`] to each outcome, writes the result, and returns which sessions have more work.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
};

use contracts::Root;
use domain::{ImpossibleStep, SessionPhase};
use runtime::{Outbox, Shutdown};
use storage::{
    Accounts, Database, StorageError, Tx,
    dead_letter::{Given, dead_letter_insert},
    outbox::{Owned, outbox_insert},
};
use time::OffsetDateTime;

pub use super::change::Change;
use super::{
    call::Report,
    change::change,
    claim::possible,
    messages::{message_posted, notification_failed, outcome_messages},
    settle::{AttemptFacts, Settled, settle},
    work::Work,
};
use crate::{
    metrics::Metrics,
    settings::DeliverySettings,
    store::{SessionName, refused::notifications_load},
};
use storage::session::{
    sessions_lock::{LockedSession, SESSIONS_LOCK, sessions_lock},
    turns_record::{Changed, TurnRecord, Written, turns_record},
};

#[derive(Clone)]
pub struct Recorder {
    pub database: Database,
    pub root: Root,
    pub config: Arc<DeliverySettings>,
    pub metrics: Metrics,
    pub outbox: Outbox,
    /// Number of committed batches, of all recorders of this process.
    pub recorded: Arc<AtomicU64>,
    /// Triggers crash points.
    pub shutdown: Shutdown,
}

/// A report with a current fence, and its meaning.
#[derive(Debug)]
pub struct Decided<'a> {
    pub report: &'a Report,
    pub session: &'a LockedSession,
    pub settled: Settled,
    pub change: Change,
}

impl Recorder {
    /// Writes all reports or none; returns their sessions, and whether each has more work now. Safe to repeat, also
    /// after an unconfirmed commit: a written turn is no longer in flight.
    pub async fn record(&self, reports: &[Report]) -> Result<Vec<(SessionName, bool)>, StorageError> {
        let names: Vec<SessionName> = reports.iter().map(|report| report.work.name()).collect();
        let tx = self
            .database
            .begin(&Accounts::many(names.iter().map(|(account, _)| account)))
            .await?;
        let sessions: HashMap<SessionName, LockedSession> = sessions_lock(&tx, SESSIONS_LOCK, &names)
            .await?
            .into_iter()
            .map(|session| (session.name(), session))
            .collect();
        let now = OffsetDateTime::now_utc();
        let mut free = Vec::with_capacity(reports.len());
        let mut decided = Vec::with_capacity(reports.len());
        for report in reports {
            // A newer fence: another replica took the session over and resumes the turn. A normal outcome.
            match sessions
                .get(&report.work.name())
                .filter(|session| session.fence == report.work.turn.fence)
            {
                // The fence is current and the session is released: an earlier try recorded the outcome, and its commit
                // was not confirmed.
                Some(session) if session.facts.phase != SessionPhase::Running => {
                    free.push((report.work.name(), true));
                }
                Some(session) => {
                    let decision = decide(report, session, now, &self.config);
                    match possible(decision, session, Some(report.work.turn.id)) {
                        Some(decision) => decided.push(decision),
                        None => free.push((report.work.name(), false)),
                    }
                }
                None => {
                    self.metrics.stale();
                    let (turn_id, fence) = (report.work.turn.id, report.work.turn.fence);
                    tracing::info!(
                        %turn_id, session_id = %report.work.turn.session, %fence,
                        "outcome discarded: another replica holds the session"
                    );
                    free.push((report.work.name(), true));
                }
            }
        }
        let records: Vec<TurnRecord<'_>> = decided.iter().map(|decided| decided.change.record()).collect();
        let Written {
            mut turns,
            items: ended,
            posted,
        } = turns_record(&tx, &records).await?;
        let decided: Vec<(Decided<'_>, Changed)> = decided
            .into_iter()
            .filter_map(|decided| {
                let work = &decided.report.work;
                let changed = turns.remove(&work.turn_name());
                // The fence is current and the turn is no longer in flight: an earlier try with an unconfirmed commit
                // wrote it.
                free.push((work.name(), changed.is_none() || decided.change.more));
                Some((decided, changed?))
            })
            .collect();
        let mut messages = Vec::new();
        for (decided, changed) in &decided {
            let Decided { report, settled, .. } = decided;
            messages.extend(outcome_messages(&self.root, decided, changed, &ended, now));
            let author = posted.get(&report.work.turn_name());
            messages.extend(author.map(|author| message_posted(&self.root, &report.work, author, now)));
            if let Settled::GaveUp { error, class, .. } = settled {
                messages.extend(self.bury(&tx, &report.work, error, class, now).await?);
            }
        }
        let outbox = outbox_insert(&tx, messages).await?;
        self.shutdown.crash_point("delivery.outcome_written").await;
        tx.commit().await?;
        self.shutdown.crash_point("delivery.outcome_committed").await;
        self.outbox.publish_soon(outbox);
        for (decided, changed) in &decided {
            let Decided { report, settled, .. } = decided;
            count(&self.metrics, &report.work, settled, changed);
            if decided.change.turn.over {
                self.metrics.ended(posted.contains_key(&report.work.turn_name()));
            }
            log(&report.work, settled, changed);
        }
        Ok(free)
    }

    /// Dead letters of a failed turn: the notifications themselves, so that they can be redriven.
    async fn bury(
        &self,
        tx: &Tx,
        work: &Work,
        error: &str,
        class: &str,
        now: OffsetDateTime,
    ) -> Result<Vec<Owned>, StorageError> {
        let mut messages = Vec::new();
        for refused in notifications_load(tx, &self.root, &work.turn.account, &work.notification_ids).await? {
            let given = Given {
                account: Some(&work.turn.account),
                task: work.turn.task.as_ref(),
                subject: &refused.subject,
                headers: &refused.headers,
                payload: &refused.payload,
                reason: class,
                detail: error,
                attempts: work.attempts + 1,
                origin: work.origin(),
                at: now,
            };
            let (letter, message) = dead_letter_insert(tx, &self.root, &given).await?;
            messages.push(message);
            let about = (refused.id(), letter);
            messages.push(notification_failed(&self.root, work, about, (class, error), now));
        }
        Ok(messages)
    }
}

/// Decides a report for its session, which is locked and has the report's fence. Pure.
pub fn decide<'a>(
    report: &'a Report,
    session: &'a LockedSession,
    now: OffsetDateTime,
    config: &DeliverySettings,
) -> Result<Decided<'a>, ImpossibleStep> {
    let work = &report.work;
    let facts = AttemptFacts {
        effects: work.effects,
        closed: session.facts.closed,
        failures: work.failures,
        rounds: i32::try_from(work.journal.rounds.len()).expect("rounds of a turn are limited"),
        calls_before: i32::try_from(work.journal.calls().count()).expect("calls of a turn are limited"),
        ordinal_before: work.journal.last_ordinal(),
        attempts: work.attempts,
        lost_for: work.lost_for(now),
    };
    let settled = settle(&report.outcome, &facts, config);
    let change = change(report, session, &settled, config)?;
    Ok(Decided {
        report,
        session,
        settled,
        change,
    })
}

fn count(metrics: &Metrics, work: &Work, settled: &Settled, changed: &Changed) {
    if let Settled::Finished { usage, .. } = settled {
        metrics.finished(changed.task_history_called, &work.profile_version, *usage);
    }
    if let Some((_, class)) = settled.error() {
        metrics.failed(class);
    }
    metrics.settled(settled.as_str());
}

/// Logs one line per turn (S13): sizes and ids, never texts of the conversation. A turn that succeeds is logged at
/// debug, since events and metrics report it; every other outcome at info.
fn log(work: &Work, settled: &Settled, changed: &Changed) {
    let class = settled.error().map_or("", |(_, class)| class);
    let what = match settled {
        Settled::Finished { late: true, .. } => "finished late",
        Settled::Finished { .. } => "finished",
        Settled::AwaitTools { .. } => "waits for tools",
        Settled::Again { .. } => "will be retried",
        Settled::LookAgain { .. } => "is being looked up",
        Settled::Interrupted { .. } => "was interrupted",
        Settled::GaveUp { .. } => "failed",
        Settled::Aborted => "was aborted",
    };
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                turn_id = %work.turn.id, account = %work.turn.account, session_id = %work.turn.session,
                generation = work.turn.generation.0, number = work.number, attempt = work.attempt,
                round = work.journal.rounds.len(), profile_version = %work.profile_version,
                task_history_called = changed.task_history_called, class,
                "turn {} {what}", work.number
            )
        };
    }
    match settled {
        Settled::Finished { .. } | Settled::AwaitTools { .. } => line!(debug),
        _ => line!(info),
    }
}
