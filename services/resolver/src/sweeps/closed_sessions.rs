//! Closed sessions are kept for a set time, then deleted with all their rows (S12). The row of each newest generation
//! stays, since it carries the number.

use std::time::Duration;

use domain::{AccountId, SessionId};
use runtime::sweep::{Parts, Pieces};
use storage::{
    Accounts, Database, StorageError,
    directory::session_outlived,
    session::sessions_remove::{Removal, sessions_remove},
};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Deletes sessions that were closed longer ago than `kept`; returns how many. One transaction deletes a part of each
/// session of a page of `limit`, and rounds repeat until nothing is left: a session with a million notifications takes
/// many rounds and does not delay the others.
pub async fn closed_sessions_remove(
    database: &Database,
    kept: Duration,
    limit: u32,
    stop: &CancellationToken,
) -> Result<u64, StorageError> {
    let mut sessions = Parts::default();
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        let mut walk = session_outlived(OffsetDateTime::now_utc() - kept);
        while let Some(page) = walk.next(database, limit).await? {
            for (account, ids) in page {
                if stop.is_cancelled() {
                    return sessions.end();
                }
                let ids: Vec<SessionId> = ids.into_iter().map(SessionId).collect();
                let mut pieces = Pieces::of(&ids);
                while let Some(piece) = pieces.next().filter(|_| !stop.is_cancelled()) {
                    let removed = remove(database, &account, piece, sessions.rows_max()).await;
                    goes_on |= removed.as_ref().is_ok_and(|removal| removal.more);
                    let removed = removed.map(|removal| removal.sessions);
                    sessions.note_piece(&account, &mut pieces, piece, removed);
                }
            }
        }
    }
    let removed = sessions.end()?;
    if removed > 0 {
        info!(sessions = removed, "deleted closed sessions");
    }
    Ok(removed)
}

async fn remove(
    database: &Database,
    account: &AccountId,
    sessions: &[SessionId],
    rows_max: u32,
) -> Result<Removal, StorageError> {
    let tx = database.begin(&Accounts::one(account)).await?;
    let removed = sessions_remove(&tx, account, sessions, i64::from(rows_max)).await;
    tx.commit_or_rollback(removed).await
}
