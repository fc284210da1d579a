//! Refused notifications are kept for a set time, for their publishers to ask about, then removed. Until then their ids
//! are taken: the same one with the same content is refused again, without another dead letter.

use std::{collections::BTreeMap, time::Duration};

use domain::AccountId;
use storage::{Accounts, Database, StorageError, directory::notification_refused};
use time::OffsetDateTime;
use tracing::info;

use crate::store::notifications::refused_remove;

/// Removes what was refused longer ago than `kept`, a bounded number at a time; gives how many.
pub async fn refused_notifications_remove(
    database: &Database,
    kept: Duration,
    limit: u32,
) -> Result<u64, StorageError> {
    let older_than = OffsetDateTime::now_utc() - kept;
    let expired = notification_refused(database, older_than, i32::try_from(limit).unwrap_or(i32::MAX)).await?;
    let mut by_account: BTreeMap<AccountId, Vec<String>> = BTreeMap::new();
    for (account, id) in expired {
        by_account.entry(account).or_default().push(id);
    }
    let mut removed = 0;
    for (account, ids) in by_account {
        let tx = database.begin(&Accounts::one(&account)).await?;
        removed += refused_remove(&tx, &account, ids).await?;
        tx.commit().await?;
    }
    if removed > 0 {
        info!(notifications = removed, "removed refused notifications");
    }
    Ok(removed)
}
