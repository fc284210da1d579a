//! Closed sessions are kept for a set time, then removed with all that hangs on them (S12). Of the newest generation of
//! each the row stays: it carries the number.

use std::{collections::BTreeMap, time::Duration};

use domain::{AccountId, SessionId};
use storage::{Accounts, Database, StorageError, directory::session_outlived, lifecycle::sessions_remove};
use time::OffsetDateTime;
use tracing::info;

/// Removes what was closed longer ago than `kept`, a bounded number at a time; gives how many.
pub async fn closed_sessions_remove(database: &Database, kept: Duration, limit: u32) -> Result<u64, StorageError> {
    let older_than = OffsetDateTime::now_utc() - kept;
    let expired = session_outlived(database, older_than, i32::try_from(limit).unwrap_or(i32::MAX)).await?;
    let mut by_account: BTreeMap<AccountId, Vec<SessionId>> = BTreeMap::new();
    for (account, session) in expired {
        by_account.entry(account).or_default().push(session);
    }
    let mut removed = 0;
    for (account, sessions) in by_account {
        let tx = database.begin(&Accounts::one(&account)).await?;
        removed += sessions_remove(&tx, &account, &sessions).await?;
        tx.commit().await?;
    }
    if removed > 0 {
        info!(sessions = removed, "removed closed sessions");
    }
    Ok(removed)
}
