//! Closed sessions whose time is over are removed with all that hangs on them (S12). Of the newest generation of each
//! session the row stays, emptied: it carries the number that must not come back.

use domain::{AccountId, SessionId};
use sea_orm::ConnectionTrait;
use uuid::Uuid;

use crate::{StorageError, Tx, error::Attempt, statement};

/// What hangs on them.
const EMPTY: [&str; 3] = [
    "delete from tool_call where account_id = $1 and session_id = any($2::uuid[])",
    "delete from turn where account_id = $1 and session_id = any($2::uuid[])",
    "delete from notification where account_id = $1 and session_id = any($2::uuid[])",
];

/// Relies on the primary key and on session_generation.
macro_rules! newer {
    () => {
        "exists (select from session n where n.account_id = s.account_id and n.kind = s.kind
                  and n.task_id is not distinct from s.task_id and n.agent_id is not distinct from s.agent_id
                  and n.user_id is not distinct from s.user_id and n.generation > s.generation)"
    };
}
const REMOVE: [&str; 2] = [
    concat!(
        "delete from session s where s.account_id = $1 and s.id = any($2::uuid[]) and s.closed_at is not null and ",
        newer!()
    ),
    concat!(
        "update session s set queue_tail = 0, turn_count = 0
         where s.account_id = $1 and s.id = any($2::uuid[]) and s.closed_at is not null and not ",
        newer!()
    ),
];

/// Removes or empties these sessions of one account; gives how many.
pub async fn sessions_remove(tx: &Tx, account: &AccountId, sessions: &[SessionId]) -> Result<u64, StorageError> {
    let ids: Vec<Uuid> = sessions.iter().map(|id| id.uuid()).collect();
    let run = async |sql: &'static str| {
        let values = [account.as_str().into(), ids.clone().into()];
        let result = tx.execute_raw(statement(sql, values)).await;
        Ok::<u64, StorageError>(result.attempt("remove expired sessions")?.rows_affected())
    };
    for sql in EMPTY {
        run(sql).await?;
    }
    let mut removed = 0;
    for sql in REMOVE {
        removed += run(sql).await?;
    }
    Ok(removed)
}
