//! What holds have still to do: turns to stop, sessions to unpark, holds whose time is over. Idempotent, and safe in several
//! replicas at once: each piece locks its hold.

use std::collections::HashMap;

use domain::{AccountId, error_chain};
use runtime::sweep::{Parts, Sweep, Ticks};
use storage::{
    Role, StorageError,
    directory::{HoldDue, hold_due},
    hold::{Piece, SESSIONS_MAX, hold_settle, holds_expire},
};
use tokio_util::sync::CancellationToken;

use crate::app::{App, database_now};

/// Holds read in one query.
const HOLDS_MAX: i32 = 500;
/// Pieces of a hold at one look: 1,000 turns that it stops.
const PIECES_MAX: usize = 4;

pub async fn sweep(app: App, stop: CancellationToken) {
    let sweep = Sweep::new(Role::Orchestrator.service(), "holds");
    let mut ticks = Ticks::every(app.settings.timer_interval_ms.duration(), stop.clone());
    while ticks.next().await {
        sweep.once(settle_once(&app, &stop)).await;
    }
}

/// Some pieces of every hold that has something to do; gives the number of sessions. A hold that fails does not stop the others.
pub async fn settle_once(app: &App, stop: &CancellationToken) -> Result<u64, StorageError> {
    let mut parts = Parts::default();
    let mut after: Option<HoldDue> = None;
    // All holds of an account together start no more sessions again than one does.
    let mut opened: HashMap<AccountId, i64> = HashMap::new();
    loop {
        let due = hold_due(&app.database, after.as_ref(), HOLDS_MAX).await?;
        let unsettled = due.iter().filter(|due| !due.is_over).count();
        for due in &due {
            if stop.is_cancelled() {
                return parts.end();
            }
            for _ in 0..PIECES_MAX {
                let opened = opened.entry(due.account.clone()).or_default();
                let settled = settle(app, due, SESSIONS_MAX - *opened).await;
                *opened += settled.as_ref().map_or(0, |piece| piece.opened);
                let goes_on = settled.as_ref().is_ok_and(|piece| piece.goes_on);
                parts.note(&due.account, settled.map(|piece| piece.sessions as u64));
                if !goes_on {
                    break;
                }
            }
        }
        if unsettled < usize::try_from(HOLDS_MAX).unwrap_or(usize::MAX) {
            return parts.end();
        }
        after = due.into_iter().rfind(|due| !due.is_over);
    }
}

async fn settle(app: &App, due: &HoldDue, open_max: i64) -> Result<Piece, StorageError> {
    let tx = app.begin_sweep(&due.account).await?;
    let setting = app.setting(None, database_now(&tx).await?);
    let done = match due.is_over {
        true => holds_expire(&tx, &due.account, &setting)
            .await
            .map(|messages| (Piece::default(), messages)),
        false => hold_settle(&tx, &due.account, due.hold, open_max, &setting).await,
    };
    match done {
        Ok((piece, messages)) => {
            app.commit_free(tx, messages).await?;
            Ok(piece)
        }
        Err(error) => {
            if let Err(failed) = tx.rollback().await {
                tracing::debug!(error = error_chain(&failed), "could not roll back");
            }
            Err(error)
        }
    }
}
