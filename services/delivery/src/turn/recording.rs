//! Records outcomes in batches. A batch that fails is split; an outcome that cannot be stored alone is recorded as a
//! failed attempt.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use domain::{Backoff, TurnId, error_chain};
use runtime::Incarnation;
use storage::{Parts, StorageError};
use time::OffsetDateTime;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::Instant,
};
use tracing::warn;

use super::{GATHER, RETRY_PAUSE, call::Report, is_of_the_batch, recorder::Recorder, workers::Workers};
use crate::{
    queue::signal::{Signal, Stay, tell},
    store::SessionName,
};

/// A session keeps its place this long while others of its account wait for one: long against a turn that is over at once,
/// short against one of an agent that thinks.
const PLACE_KEPT_MAX: time::Duration = time::Duration::milliseconds(100);

/// How long a statement waits for a lock at the first try of a batch: the others of the batch wait with it.
const BATCH_LOCK_TIMEOUT: Duration = Duration::from_millis(250);
/// After a failure, no turn begins with a record for so long: what made it fail may stay.
const BEGIN_PAUSE: Duration = Duration::from_secs(1);

/// Sessions that may start their next turns in their places.
struct GoingOn {
    sessions: HashSet<SessionName>,
    incarnation: Incarnation,
    /// Held from before the turns begin, so that the recorder is there when they end.
    reports: mpsc::Sender<Report>,
}

/// Records until every worker has ended, also after the stop: received answers are stored. `workers` run the next turns
/// that begin with a record, and report to `again`.
pub async fn record(
    recorder: Recorder,
    mut reports: mpsc::Receiver<Report>,
    again: mpsc::WeakSender<Report>,
    workers: Workers,
) {
    let prompt = Recorder {
        database: recorder.database.with_lock_timeout(BATCH_LOCK_TIMEOUT),
        ..recorder.clone()
    };
    let hurried = Recorder {
        database: prompt.database.hurried(),
        ..recorder.clone()
    };
    let passing = Recorder {
        passes_locked: true,
        ..hurried.clone()
    };
    let places_alone = Arc::new(Semaphore::new(ALONE_MAX));
    let mut begins_from = Instant::now();
    let mut batch = Vec::new();
    loop {
        if reports
            .recv_many(&mut batch, recorder.starter.config.settle_batch_max.usize())
            .await
            == 0
        {
            return;
        }
        let several = batch.len() > 1;
        // One transaction holds one outcome per session. One worker has a session at a time, so a batch never has two.
        let mut alone = BTreeSet::new();
        // After a failure no outcome waits for a lock with others.
        let mut has_failed = false;
        if Instant::now() >= begins_from {
            match workers.record_and_begin(&hurried, &batch, &again).await {
                Begun::Recorded(locked) => batch.retain(|report| locked.contains(&report.work.turn.id)),
                Begun::No => {}
                Begun::Failed => {
                    has_failed = true;
                    begins_from = Instant::now() + BEGIN_PAUSE;
                }
            }
        }
        let mut parts = Parts::of(&batch);
        while let Some(part) = parts.next() {
            let recorder = if has_failed { &passing } else { &prompt };
            let error = match record_patiently(recorder, part, &workers, StorageError::waits_for_lock).await {
                Ok(locked) => {
                    alone.extend(locked);
                    continue;
                }
                Err(error) => error,
            };
            has_failed = true;
            // One bad report, or one locked session, must not block the others.
            if parts.halve(part) {
                warn!(
                    error = error_chain(&error),
                    reports = part.len(),
                    "recording a batch failed; retrying it in halves"
                );
            } else {
                alone.insert(part[0].work.turn.id);
            }
        }
        for report in batch.drain(..).filter(|report| alone.contains(&report.work.turn.id)) {
            let recording = record_alone(recorder.clone(), report, workers.clone(), Arc::clone(&places_alone));
            recorder.shutdown.spawn_once("delivery outcome", recording);
        }
        batch.clear();
        if several {
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// Outcomes recorded alone at one time: each may hold a connection for as long as a statement may wait.
const ALONE_MAX: usize = 4;
/// A slow outcome is retried alone this many times before its attempt counts as failed, if other outcomes were recorded
/// meanwhile.
const ALONE_TRIES_MAX: u32 = 3;
const ALONE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Records one outcome that failed in its batch, or whose session is locked. Runs in a worker of its own, so that no batch
/// waits for it.
async fn record_alone(recorder: Recorder, report: Report, workers: Workers, places: Arc<Semaphore>) {
    // The semaphore is never closed.
    let _place = places.acquire().await;
    let one = [report];
    if let Err(error) = record_while_slow(&recorder, &one, &workers).await {
        let [report] = one;
        record_unrecordable(&recorder, report, &error, &workers).await;
    }
}

/// Retries one outcome until it is recorded or cannot be stored. A slow outcome fails only if others were
/// recorded meanwhile; otherwise the database is slow.
async fn record_while_slow(recorder: &Recorder, one: &[Report; 1], workers: &Workers) -> Result<(), StorageError> {
    let before = recorder.recorded.load(Ordering::Relaxed);
    let (mut tries, mut backoff) = (1, Backoff::new(RETRY_PAUSE, ALONE_PAUSE_MAX));
    loop {
        let others_are_recorded = || recorder.recorded.load(Ordering::Relaxed) > before;
        match record_patiently(recorder, one, workers, |_| false).await {
            Err(error) if error.is_too_much() && (tries < ALONE_TRIES_MAX || !others_are_recorded()) => tries += 1,
            ended => return ended.map(|_| ()),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// An outcome that cannot be stored, or only too slowly, must not keep its session leased for the life of this process:
/// the attempt is recorded as failed, without the provider's text. If even that fails, the lease stays until this
/// process ends or loses it. The next holder then finds the turn in flight and follows the provider's rules.
async fn record_unrecordable(recorder: &Recorder, report: Report, error: &StorageError, workers: &Workers) {
    let (turn_id, session_id) = (report.work.turn.id, report.work.turn.session);
    tracing::error!(
        %turn_id, %session_id, error = error as &dyn std::error::Error,
        "could not record the outcome; recording the attempt as failed"
    );
    let name = report.work.name();
    if let Err(error) = record_while_slow(recorder, &[report.unrecordable()], workers).await {
        tracing::error!(
            %turn_id, %session_id, error = &error as &dyn std::error::Error,
            "could not record the failed attempt; the session stays leased"
        );
        tell(&workers.signals, Signal::Free(vec![(name, false)])).await;
    }
}

/// Retries until it is recorded or cannot be. `ends`: further errors that end the retries. Returns the turns that were left
/// out, since their sessions are locked.
async fn record_patiently(
    recorder: &Recorder,
    reports: &[Report],
    workers: &Workers,
    ends: fn(&StorageError) -> bool,
) -> Result<Vec<TurnId>, StorageError> {
    loop {
        match recorder.record(reports, None).await {
            Ok(recorded) => {
                if recorded.locked.len() < reports.len() {
                    recorder.recorded.fetch_add(1, Ordering::Relaxed);
                }
                tell(&workers.signals, Signal::Free(recorded.free)).await;
                return Ok(recorded.locked);
            }
            Err(error) if is_of_the_batch(&error) || ends(&error) => return Err(error),
            Err(error) => {
                warn!(
                    error = error_chain(&error),
                    reports = reports.len(),
                    "recording outcomes failed; will retry"
                );
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// The end of a record with which next turns were to begin.
enum Begun {
    /// But these turns.
    Recorded(Vec<TurnId>),
    /// No session may go on: nothing was tried.
    No,
    /// The outcomes are still to be recorded, without beginnings.
    Failed,
}

impl Workers {
    /// Records a batch and begins the next turns of its sessions, once.
    async fn record_and_begin(
        &self,
        recorder: &Recorder,
        reports: &[Report],
        again: &mpsc::WeakSender<Report>,
    ) -> Begun {
        let Some(going_on) = self.going_on(reports, again).await else {
            return Begun::No;
        };
        let may = (&going_on.sessions, going_on.incarnation.id);
        match recorder.record(reports, Some(may)).await {
            Ok(recorded) => {
                recorder.recorded.fetch_add(1, Ordering::Relaxed);
                self.take(recorded.begun, &going_on.incarnation, &going_on.reports);
                tell(&self.signals, Signal::Free(recorded.free)).await;
                Begun::Recorded(recorded.locked)
            }
            Err(error) => {
                warn!(
                    error = error_chain(&error),
                    reports = reports.len(),
                    "recording outcomes and beginning the next turns failed; recording the outcomes alone"
                );
                Begun::Failed
            }
        }
    }

    /// Asks which sessions of these reports may go on. None: no session, or the process stops or has no lease.
    async fn going_on(&self, reports: &[Report], again: &mpsc::WeakSender<Report>) -> Option<GoingOn> {
        let incarnation = self.replica.current()?;
        let now = OffsetDateTime::now_utc();
        let stay = |report: &Report| Stay {
            name: report.work.name(),
            provider: report.work.provider.clone(),
            brief: (now - report.work.placed_at).abs() < PLACE_KEPT_MAX,
        };
        let stays = reports.iter().map(stay).collect();
        let (answer, answered) = oneshot::channel();
        tell(&self.signals, Signal::MayGoOn(stays, answer)).await;
        // The conductor ends at the stop.
        let sessions = answered.await.ok().filter(|sessions| !sessions.is_empty())?;
        Some(GoingOn {
            sessions,
            incarnation,
            reports: again.upgrade()?,
        })
    }
}
