//! Closed sessions whose time is over are removed with all that hangs on them (S12). The newest generation of each
//! session stays, whatever its age: it carries the number that must not come back.

use domain::{AccountId, SessionId};
use sea_orm::ConnectionTrait;
use uuid::Uuid;

use crate::{StorageError, Tx, error::Attempt, statement};

const REMOVE: [&str; 4] = [
    "delete from tool_call where account_id = $1 and session_id = any($2::uuid[])",
    "delete from turn where account_id = $1 and session_id = any($2::uuid[])",
    "delete from notification where account_id = $1 and session_id = any($2::uuid[])",
    "delete from session where account_id = $1 and id = any($2::uuid[]) and closed_at is not null",
];

/// Removes these sessions of one account; gives how many. Twice is once.
pub async fn sessions_remove(tx: &Tx, account: &AccountId, sessions: &[SessionId]) -> Result<u64, StorageError> {
    let ids: Vec<Uuid> = sessions.iter().map(|id| id.uuid()).collect();
    let mut removed = 0;
    for sql in REMOVE {
        let result = tx
            .execute_raw(statement(sql, [account.as_str().into(), ids.clone().into()]))
            .await;
        removed = result.attempt("remove expired sessions")?.rows_affected();
    }
    Ok(removed)
}
