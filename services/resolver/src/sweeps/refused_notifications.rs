//! Refused notifications are kept for a set time, so that publishers can query them, then deleted. Until then their ids
//! are taken: the same id with the same content is refused again, without another dead letter.

use std::time::Duration;

use domain::AccountId;
use runtime::sweep::{Parts, Pieces};
use storage::{Accounts, Database, StorageError, directory::notification_refused};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use tracing::info;

use storage::session::items_refuse::refused_remove;

/// Deletes notifications that were refused longer ago than `kept`, the oldest first and a bounded number per
/// transaction; returns how many.
pub async fn refused_notifications_remove(
    database: &Database,
    kept: Duration,
    limit: u32,
    stop: &CancellationToken,
) -> Result<u64, StorageError> {
    let mut notifications = Parts::default();
    let mut walk = notification_refused(OffsetDateTime::now_utc() - kept);
    while let Some(page) = walk.next(database, limit).await? {
        for (account, ids) in page {
            if stop.is_cancelled() {
                return notifications.end();
            }
            let mut pieces = Pieces::of(&ids);
            while let Some(piece) = pieces.next().filter(|_| !stop.is_cancelled()) {
                let removed = remove(database, &account, piece.to_vec()).await;
                notifications.note_piece(&account, &mut pieces, piece, removed);
            }
        }
    }
    let removed = notifications.end()?;
    if removed > 0 {
        info!(notifications = removed, "deleted refused notifications");
    }
    Ok(removed)
}

async fn remove(database: &Database, account: &AccountId, ids: Vec<String>) -> Result<u64, StorageError> {
    let tx = database.begin(&Accounts::one(account)).await?;
    let removed = refused_remove(&tx, account, ids).await;
    tx.commit_or_rollback(removed).await
}
