//! Dry runs make a change and take it back. An account has one at a time.

use std::time::Duration;

use domain::AccountId;
use runtime::http::Problem;
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

use crate::error::ApiError;

const DRY_RUN_ALONE: &str = "select pg_try_advisory_xact_lock(hashtextextended('dry run ' || $1, 0))::text as locked";

#[derive(FromQueryResult)]
struct Alone {
    locked: String,
}

/// Whether this is the account's only dry run, until the transaction ends: a dry run does the work and takes it back.
async fn is_alone(tx: &Tx, account: &AccountId) -> Result<bool, StorageError> {
    let found: Option<Alone> = tx.one("lock dry runs", DRY_RUN_ALONE, [account.into()]).await?;
    Ok(found.is_some_and(|alone| alone.locked == "true"))
}

/// Refuses a second dry run of the account at the same time: it holds as many locks as the change itself.
pub async fn alone(tx: &Tx, account: &AccountId) -> Result<(), ApiError> {
    match is_alone(tx, account).await? {
        true => Ok(()),
        false => {
            let wait = Problem::too_many_requests(Duration::from_secs(1));
            Err(wait
                .detail("another dry run of this account is in progress: try again when it has ended")
                .into())
        }
    }
}
