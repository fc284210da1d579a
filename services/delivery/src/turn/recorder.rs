//! Records outcomes: one transaction for all turns that ended close together. Locks their sessions, checks each fence,
//! applies [`settle`] to each outcome, writes the result, and returns which sessions have more work. Sessions that may go
//! on start their next turns in the same transaction.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, LazyLock, atomic::AtomicU64},
    time::Duration,
};

use contracts::{
    Root,
    tools::{self, ToolDefinition, ToolEffect},
};
use domain::{
    Actor, ImpossibleStep, RecoveryCause, RecoveryState, SessionPhase, TurnId,
    progress::{Deeds, Streak},
};
use runtime::{Outbox, Shutdown};
use storage::{
    Accounts, Database, StorageError, Tx,
    dead_letter::{Given, dead_letter_insert},
    outbox::{Owned, outbox_insert, outbox_rows, outbox_withdraw},
    question::{Ending, Scope, questions_end_of},
    recovery::{Stuck, recovery_note},
};
use time::OffsetDateTime;
use uuid::Uuid;

pub use super::change::Change;
use super::{
    call::Report,
    change::change,
    messages::{message_posted, notification_failed, outcome_messages},
    settle::{AttemptFacts, OUTCOME_UNKNOWN, Settled, settle},
    starter::{Starter, Starting, possible},
    work::Work,
};
use crate::{
    metrics::Metrics,
    providers::Thread,
    settings::DeliverySettings,
    store::{SessionName, holds::Holds, refused::notifications_load},
};
use storage::session::{
    session_succeed::{Succession, session_succeed},
    sessions_lock::{LockedSession, SESSIONS_LOCK, SESSIONS_LOCK_FREE, SessionFacts, sessions_lock},
    turns_record::{Changed, TurnRecord, Written, turns_record},
};

#[derive(Clone)]
pub struct Recorder {
    pub database: Database,
    pub root: Root,
    pub starter: Starter,
    pub metrics: Metrics,
    pub outbox: Outbox,
    /// Number of committed batches, of all recorders of this process.
    pub recorded: Arc<AtomicU64>,
    /// Leaves outcomes out whose sessions another transaction has locked, instead of waiting.
    pub passes_locked: bool,
    /// Triggers crash points.
    pub shutdown: Shutdown,
}

/// The result of a batch.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Released sessions, and whether each has more work now.
    pub free: Vec<(SessionName, bool)>,
    /// The next turns of the others.
    pub begun: Vec<Work>,
    /// Turns that were left out: another transaction has their sessions locked, or they are to be recorded alone.
    pub locked: Vec<TurnId>,
}

/// A report with a current fence, and its meaning.
#[derive(Debug)]
pub struct Decided<'a> {
    pub report: &'a Report,
    pub session: &'a LockedSession,
    pub settled: Settled,
    pub change: Change,
    now: OffsetDateTime,
}

impl Recorder {
    /// Writes all reports or none. Safe to repeat, also after an unconfirmed commit: a written turn is no longer in
    /// flight, and the lease of a next turn that began is this replica's. `going_on`: sessions that may start their next
    /// turns under a lease of this replica. After an error the caller tries without, since a next turn that cannot
    /// begin must not hold up an outcome.
    pub async fn record(
        &self,
        reports: &[Report],
        mut going_on: Option<(&HashSet<SessionName>, Uuid)>,
    ) -> Result<Recorded, StorageError> {
        loop {
            let recorded = self.record_all(reports, going_on).await;
            if recorded.is_err() && going_on.is_some() {
                self.starter.failed();
            }
            match recorded? {
                Some(recorded) => return Ok(recorded),
                None => going_on = None,
            }
        }
    }

    /// None: a session that was to go on began no turn, or the process stops. Nothing was written.
    async fn record_all(
        &self,
        reports: &[Report],
        going_on: Option<(&HashSet<SessionName>, Uuid)>,
    ) -> Result<Option<Recorded>, StorageError> {
        // A branch that ends folds into its parent's queue.
        let sessions = reports
            .iter()
            .flat_map(|report| [Some(report.work.name()), report.work.parent_name()]);
        let names: BTreeSet<SessionName> = sessions.flatten().collect();
        let names: Vec<SessionName> = names.into_iter().collect();
        let tx = self
            .database
            .begin(&Accounts::many(names.iter().map(|(account, _)| account)).with_operator())
            .await?;
        let lock = match self.passes_locked {
            true => SESSIONS_LOCK_FREE,
            false => SESSIONS_LOCK,
        };
        let sessions: HashMap<SessionName, LockedSession> = sessions_lock(&tx, lock, &names)
            .await?
            .into_iter()
            .map(|session| (session.name(), session))
            .collect();
        let now = OffsetDateTime::now_utc();
        let counts = |report: &&Report| {
            sessions
                .get(&report.work.name())
                .is_some_and(|session| is_current(session, report))
        };
        let said = reports.iter().filter(counts).filter_map(Report::said);
        let mut breakers = self.starter.breakers.record(&tx, said).await?;
        let mut free = Vec::with_capacity(reports.len());
        let mut locked = Vec::new();
        let mut decided = Vec::with_capacity(reports.len());
        for report in reports {
            // A newer fence is a normal outcome: another replica resumes the turn, or an earlier try recorded it and
            // began the next turn, and its commit was not confirmed.
            match sessions
                .get(&report.work.name())
                .filter(|session| session.fence == report.work.turn.fence)
            {
                Some(session) if self.passes_locked && lacks_parent(&sessions, report) => {
                    debug_assert!(session.branch.is_some(), "only a branch has a parent");
                    locked.push(report.work.turn.id);
                }
                // The fence is current and the session is released: an earlier try recorded the outcome, and its commit
                // was not confirmed.
                Some(session) if session.facts.phase != SessionPhase::Running => {
                    free.push((report.work.name(), true));
                }
                Some(session) => {
                    let breaker = breakers.waits.get(&report.work.turn_name()).copied();
                    let decision = decide(report, session, breaker, now, &self.starter.config);
                    match possible(decision, session, Some(report.work.turn.id)) {
                        Some(mut decision) => {
                            let may = |(sessions, _): (&HashSet<SessionName>, Uuid)| sessions.contains(&session.name());
                            decision.change.session.goes_on = going_on.is_some_and(may) && decision.may_go_on();
                            decided.push(decision);
                        }
                        None => free.push((report.work.name(), false)),
                    }
                }
                None if self.passes_locked && !sessions.contains_key(&report.work.name()) => {
                    locked.push(report.work.turn.id);
                }
                None => {
                    self.metrics.stale();
                    let (turn_id, fence) = (report.work.turn.id, report.work.turn.fence);
                    tracing::info!(
                        %turn_id, session_id = %report.work.turn.session, %fence,
                        "outcome discarded: the session has a newer fence"
                    );
                    free.push((report.work.name(), true));
                }
            }
        }
        if reports.len() > 1 {
            let alone = self.end_others(&tx, &decided).await?;
            decided.retain(|one| !alone.contains(&one.session.name()));
            let left_out = |report: &&Report| alone.contains(&report.work.name());
            locked.extend(reports.iter().filter(left_out).map(|report| report.work.turn.id));
        }
        let records: Vec<TurnRecord<'_>> = decided.iter().map(|decided| decided.change.record()).collect();
        // The messages go with the record, as they are if nothing unusual is found.
        let expected = expected(&decided);
        let mut outbox = outbox_rows(self.messages(&decided, &expected, now));
        let written = turns_record(&tx, &records, &outbox, progress_tools()).await?;
        if !written.says_the_same(&expected) {
            outbox_withdraw(&tx, outbox).await?;
            outbox = outbox_insert(&tx, self.messages(&decided, &written, now)).await?;
        }
        let decided: Vec<(Decided<'_>, Changed)> = decided
            .into_iter()
            .filter_map(|decided| {
                let work = &decided.report.work;
                let changed = written.turns.get(&work.turn_name()).copied();
                // The fence is current and the turn is no longer in flight: an earlier try with an unconfirmed commit
                // wrote it.
                if changed.is_none() || !decided.change.session.goes_on {
                    free.push((work.name(), changed.is_none() || decided.change.more));
                }
                Some((decided, changed?))
            })
            .collect();
        let mut dead_letters = Vec::new();
        for (decided, _) in &decided {
            let Settled::GaveUp { error, class, .. } = &decided.settled else {
                continue;
            };
            if decided.session.replay.is_some() {
                continue;
            }
            if decided.session.branch.is_some() {
                let failed = decided.change.ended();
                let told = failed
                    .map(|id| notification_failed(&self.root, &decided.report.work, (id, None), (class, error), now));
                dead_letters.extend(told);
            } else {
                dead_letters.extend(self.bury(&tx, decided, error, class, now).await?);
                dead_letters.extend(self.note(&tx, decided, class, now).await?);
            }
        }
        let mut ended = dead_letters;
        ended.append(&mut breakers.events);
        for (decided, _) in decided.iter().filter(|(decided, _)| decided.change.turn.over) {
            // The account's first policy may be younger than the claim.
            if decided.report.work.may_ask || decided.session.tool_policies > 0 {
                ended.extend(self.withdraw(&tx, &decided.report.work, now).await?);
            }
        }
        ended.extend(self.fold(&tx, &decided, now).await?);
        ended.extend(self.end_replays(&tx, &decided, now).await?);
        for (decided, _) in &decided {
            ended.extend(self.reset(&tx, decided, now).await?);
        }
        outbox.extend(outbox_insert(&tx, ended).await?);
        let starting = match going_on {
            // A turn that begins at the stop could not end.
            Some(_) if self.shutdown.is_stopping() => None,
            Some((_, replica)) => self.go_on(&tx, &decided, replica).await?,
            None => Some(Starting::default()),
        };
        let Some(starting) = starting else {
            tx.rollback().await?;
            return Ok(None);
        };
        self.shutdown.crash_point("delivery.outcome_written").await;
        tx.commit().await?;
        let begun = self.starter.committed(starting);
        self.starter.breakers.committed(breakers);
        self.shutdown.crash_point("delivery.outcome_committed").await;
        self.outbox.publish_soon(outbox);
        for (decided, changed) in &decided {
            let Decided { report, settled, .. } = decided;
            count(&self.metrics, decided, changed);
            if let Some(gate) = decided.change.session.gate {
                self.metrics.parked(gate);
            }
            if decided.change.turn.over {
                self.metrics
                    .ended(written.posted.contains_key(&report.work.turn_name()));
            }
            log(&report.work, settled, changed);
        }
        Ok(Some(Recorded { free, begun, locked }))
    }

    /// The messages of these outcomes, but those of dead letters, if this is what was written.
    fn messages(&self, decided: &[Decided<'_>], written: &Written, now: OffsetDateTime) -> Vec<Owned> {
        let mut messages = Vec::new();
        for one in decided {
            let (work, turn) = (&one.report.work, one.report.work.turn_name());
            let Some(changed) = written.turns.get(&turn) else {
                continue;
            };
            messages.extend(outcome_messages(&self.root, one, changed, &written.items, now));
            let author = written.posted.get(&turn);
            messages.extend(author.map(|author| message_posted(&self.root, work, author, now)));
        }
        messages
    }

    /// Starts the next turns of sessions that go on. None: one has no queued item, in spite of its counter, or its
    /// provider no slot.
    async fn go_on(
        &self,
        tx: &Tx,
        decided: &[(Decided<'_>, Changed)],
        replica: Uuid,
    ) -> Result<Option<Starting>, StorageError> {
        let going = || {
            let all = decided.iter().map(|(decided, _)| decided);
            all.filter(|decided| decided.change.session.goes_on)
        };
        let rested = decided
            .iter()
            .filter(|(decided, _)| decided.change.session.goes_on)
            .map(|(decided, changed)| decided.rested(*changed));
        let mut starting = self
            .starter
            .start(tx, rested.collect(), replica, &mut Holds::default())
            .await?;
        let placed: HashMap<SessionName, OffsetDateTime> = going()
            .map(|decided| (decided.session.name(), decided.report.work.placed_at))
            .collect();
        for work in &mut starting.work {
            work.placed_at = placed[&work.name()];
        }
        Ok((starting.work.len() == placed.len()).then_some(starting))
    }

    /// Withdraws what somebody was asked about the calls of an ended turn: the calls do not run any more.
    async fn withdraw(&self, tx: &Tx, work: &Work, now: OffsetDateTime) -> Result<Vec<Owned>, StorageError> {
        let ending = Ending::Withdrawn {
            by: &Actor::system(),
            reason: Some("the turn has ended"),
            is_asker: true,
        };
        let scope = Scope::Turn(work.turn.session, work.turn.id);
        questions_end_of(tx, &work.turn.account, scope, &ending, &work.setting(&self.root, now)).await
    }

    /// Ends the generation with its turn, if a reset has waited for that.
    async fn reset(&self, tx: &Tx, decided: &Decided<'_>, now: OffsetDateTime) -> Result<Vec<Owned>, StorageError> {
        let (work, Some(reset)) = (&decided.report.work, &decided.change.reset) else {
            return Ok(Vec::new());
        };
        let succession = Succession::Reset {
            request: &reset.request,
            put_back: &reset.put_back,
            gate: reset.gate,
        };
        let succeeded = session_succeed(tx, &work.name(), succession, &work.setting(&self.root, now)).await?;
        tracing::info!(
            session_id = %work.turn.session, account = %work.turn.account, turn_id = %work.turn.id,
            next_session_id = %succeeded.next, moved = succeeded.moved, cancelled = succeeded.cancelled, "reset a session"
        );
        Ok(succeeded.messages)
    }

    /// A person has to see to the task of a failed turn.
    async fn note(
        &self,
        tx: &Tx,
        decided: &Decided<'_>,
        class: &str,
        now: OffsetDateTime,
    ) -> Result<Vec<Owned>, StorageError> {
        let work = &decided.report.work;
        let Some(task) = &work.turn.task else {
            return Ok(Vec::new());
        };
        let cause = match class {
            OUTCOME_UNKNOWN => RecoveryCause::TurnLost,
            _ => RecoveryCause::GivenUp,
        };
        let failed: Vec<String> = decided.change.ended().cloned().collect();
        let stuck = Stuck {
            account: &work.turn.account,
            task,
            agent: Some(work.agent_id),
            cause,
            detail: &format!("turn {} failed: {class}", work.number),
            since: now,
            items: &failed,
        };
        let setting = work.setting(&self.root, now);
        let (_, messages) = recovery_note(tx, &stuck, RecoveryState::Person, &setting).await?;
        Ok(messages)
    }

    /// Dead letters of a failed turn: the notifications themselves, so that they can be redriven.
    async fn bury(
        &self,
        tx: &Tx,
        decided: &Decided<'_>,
        error: &str,
        class: &str,
        now: OffsetDateTime,
    ) -> Result<Vec<Owned>, StorageError> {
        let (work, mut messages) = (&decided.report.work, Vec::new());
        let failed: Vec<String> = decided.change.ended().cloned().collect();
        for refused in notifications_load(tx, &self.root, &work.turn.account, &failed).await? {
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
            let about = (refused.id(), Some(letter));
            messages.push(notification_failed(&self.root, work, about, (class, error), now));
        }
        Ok(messages)
    }
}

/// What is written if no one else has written any of it, and no agent called `no_reply`.
fn expected(decided: &[Decided<'_>]) -> Written {
    let mut written = Written::default();
    for Decided { report, change, .. } in decided {
        let (work, turn) = (&report.work, report.work.turn_name());
        let items = change.items.iter().flat_map(|items| &items.notification_ids);
        written.items.extend(items.map(|id| (turn.clone(), id.clone())));
        if change.turn.posted_as.is_some() && work.turn.task.is_some() {
            written.posted.insert(turn.clone(), work.agent_name.clone());
        }
        written.turns.insert(turn, Changed::default());
    }
    written
}

impl Decided<'_> {
    /// The session's turns without progress after this one.
    fn streak(&self, changed: Changed) -> Streak {
        let before = &self.session.streak;
        let deeds = Deeds {
            progressed: changed.progressed,
            no_reply: changed.no_reply,
        };
        match (&self.report.work.wake, self.change.session.streak) {
            (Some(wake), Some(_)) => before.after(wake, deeds, self.now),
            (_, None) | (None, Some(_)) => before.clone(),
        }
    }

    /// Whether the next turn may begin with this record: the session rests, has a queue, and keeps nothing of this turn
    /// that the beginning of the next does not write. An account's own limit counts the turns of all replicas, which
    /// claims do.
    pub fn may_go_on(&self) -> bool {
        let rest = &self.change.session;
        self.change.more
            && rest.phase == SessionPhase::Idle
            && !rest.keeps_turn
            && !rest.interrupted
            && rest.stopped.is_none()
            && rest.mismatch.is_none()
            && rest.queued == 0
            && !self.session.facts.stopping
            && self.session.turns_in_flight_max.is_none()
    }

    /// The session after this record.
    pub fn rested(&self, changed: Changed) -> LockedSession {
        LockedSession {
            streak: self.streak(changed),
            thread: self.change.session.thread.clone(),
            active_turn: None,
            lease_owner: None,
            facts: SessionFacts {
                phase: self.change.session.phase,
                lease_dead: false,
                ..self.session.facts
            },
            ..self.session.clone()
        }
    }
}

/// Whether the session of its branch's parent is not locked.
fn lacks_parent(locked: &HashMap<SessionName, LockedSession>, report: &Report) -> bool {
    report
        .work
        .parent_name()
        .is_some_and(|parent| !locked.contains_key(&parent))
}

/// Whether the session's lease is still that of the report's call, and its outcome is not recorded.
fn is_current(session: &LockedSession, report: &Report) -> bool {
    session.fence == report.work.turn.fence && session.facts.phase == SessionPhase::Running
}

/// Decides a report for its session, which is locked and has the report's fence. `breaker`: the turn has met its provider's
/// breaker, and looks again after this time. Pure.
pub fn decide<'a>(
    report: &'a Report,
    session: &'a LockedSession,
    breaker: Option<Duration>,
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
        stop: session.stop(),
        breaker,
        fragile: work.thread.keeps == Thread::Process && work.thread.rounds(&work.journal) > 0,
        may_start_afresh: work
            .thread
            .context
            .as_ref()
            .is_some_and(|context| context.lost_after.is_none()),
    };
    let mut settled = settle(&report.outcome, &facts, config);
    if let (Settled::AwaitTools { round }, Some(replay)) = (&mut settled, &work.replay) {
        replay.answer(&work.journal, &mut round.calls);
    }
    let change = change(report, session, &settled, now, config)?;
    Ok(Decided {
        report,
        session,
        settled,
        change,
        now,
    })
}

/// The tools whose calls are progress. A question that the agent asks is progress, too; a message or a text about the task alone
/// is none, and no request or timer that only has somebody woken again.
fn progress_tools() -> Vec<String> {
    static TOOLS: LazyLock<Vec<String>> = LazyLock::new(|| {
        const WITHOUT_PROGRESS: [&str; 4] = ["task_message", "task_context_write", "response_request", "check_later"];
        let changes = |tool: &ToolDefinition| match tool.effect {
            ToolEffect::Write | ToolEffect::External => !WITHOUT_PROGRESS.contains(&tool.name),
            ToolEffect::None | ToolEffect::Read => false,
        };
        let progress = tools::all().iter().filter(|tool| changes(tool));
        progress.map(|tool| tool.name.to_owned()).collect()
    });
    TOOLS.clone()
}

fn count(metrics: &Metrics, decided: &Decided<'_>, changed: &Changed) {
    let Decided {
        report,
        session,
        settled,
        change,
        ..
    } = decided;
    let work = &report.work;
    if let Settled::Finished { usage, .. } = settled {
        metrics.finished(changed.task_history_called, &work.profile_version, *usage);
    }
    if let Some((_, class)) = settled.error() {
        metrics.failed(class);
    }
    if change.turn.over
        && let Some(context) = change.turn.context.as_ref().or(work.thread.context.as_ref())
    {
        metrics.context(context);
    }
    if change.session.thread.lost > session.thread.lost {
        metrics.thread_lost(&work.provider);
    }
    if let Settled::Stopped { kind, confirmed, .. } = settled {
        metrics.stopped(*kind, *confirmed);
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
        Settled::Again { counts: true, .. } => "will be retried",
        Settled::Again { counts: false, .. } => "waits for its provider",
        Settled::FreshStart { .. } => "begins again in a new thread",
        Settled::LookAgain { .. } => "is being looked up",
        Settled::Interrupted { .. } => "was interrupted",
        Settled::GaveUp { .. } => "failed",
        Settled::Aborted => "was aborted",
        Settled::Stopped { confirmed: true, .. } => "was stopped",
        Settled::Stopped { confirmed: false, .. } => "was stopped; whether its agent has ended is unknown",
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
