//! Fires due timers. Accounts take turns, a batch each, so that one with a million due timers delays no other. Safe in several
//! replicas at once: one of them fires an account's timers at a time, and the others go on to the next account.

use domain::{AccountId, error_chain};
use runtime::sweep::{Parts, Sweep, Ticks};
use storage::{
    Role, StorageError, Tx,
    directory::TimerRound,
    lifecycle::timers_fire::{DueTimer, timer_postpone, timers_due, timers_fire},
};
use tokio_util::sync::CancellationToken;

use crate::app::{App, database_now};

/// Accounts read in one query, at least.
const ACCOUNTS_MAX: i32 = 1_000;
/// When a timer that the database refuses is tried again.
const AGAIN_S: f64 = 60.0;

pub async fn sweep(app: App, stop: CancellationToken) {
    let sweep = Sweep::new(Role::Orchestrator.service(), "timers");
    let mut ticks = Ticks::every(app.settings.timer_interval_ms.duration(), stop.clone());
    let mut round = TimerRound::default();
    while ticks.next().await {
        sweep.once(fire_once(&app, &mut round, &stop)).await;
    }
}

/// Fires what is due; gives the number of timers. An account that fails does not stop the others.
pub async fn fire_once(app: &App, round: &mut TimerRound, stop: &CancellationToken) -> Result<u64, StorageError> {
    let mut parts = Parts::default();
    loop {
        let mut is_more = false;
        for account in round.look(&app.database, ACCOUNTS_MAX).await? {
            if stop.is_cancelled() {
                return parts.end();
            }
            is_more |= parts.note(&account, fire_batch(app, &account).await);
        }
        if !is_more {
            return parts.end();
        }
    }
}

/// Fires the oldest timers of an account. If the database refuses them, fewer, down to the one at fault: it is tried again later.
async fn fire_batch(app: &App, account: &AccountId) -> Result<u64, StorageError> {
    let mut timers_max = app.settings.timers_batch_max.usize();
    loop {
        let tx = app.begin_sweep(account).await?;
        let due = timers_due(&tx, account, i64::try_from(timers_max).unwrap_or(i64::MAX)).await;
        let due = match due {
            Ok(due) if !due.is_empty() => due,
            none => return tx.commit_or_rollback(none.map(|_| 0)).await,
        };
        let error = match fire(app, tx, account, &due).await {
            Ok(fired) => return Ok(fired),
            Err(error) if error.blames_batch() => error,
            Err(error) => return Err(error),
        };
        match &due[..] {
            [timer] => {
                postpone(app, account, timer, &error).await?;
                return Ok(1);
            }
            several => timers_max = several.len() / 2,
        }
    }
}

async fn fire(app: &App, tx: Tx, account: &AccountId, due: &[DueTimer]) -> Result<u64, StorageError> {
    let fired = async {
        let setting = app.setting(None, database_now(&tx).await?);
        timers_fire(&tx, account, due, &setting).await
    };
    match fired.await {
        Ok(Some(messages)) => {
            app.shutdown.crash_point("orchestrator.timer_written").await;
            app.commit_free(tx, messages).await?;
            Ok(due.len() as u64)
        }
        // One of them was cleared meanwhile: the next look finds the others.
        Ok(None) => tx.rollback().await.map(|()| 0),
        Err(error) => tx.commit_or_rollback(Err(error)).await,
    }
}

async fn postpone(app: &App, account: &AccountId, timer: &DueTimer, error: &StorageError) -> Result<(), StorageError> {
    let error = error_chain(error);
    tracing::warn!(%account, timer_id = %timer.id, error, "could not fire a timer; will retry");
    let tx = app.begin_sweep(account).await?;
    let reason = format!("could not fire: {error}");
    let postponed = timer_postpone(&tx, account, timer.id, (AGAIN_S, &reason)).await;
    tx.commit_or_rollback(postponed).await
}
