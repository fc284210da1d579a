//! What crosses accounts: ids, names and moments only, through functions that the sweeper role owns. Every function
//! here is one of those; nothing else may look across.

use domain::{AccountId, SessionId};
use sea_orm::FromQueryResult;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Accounts, Database, StorageError, error::Attempt, statement};

#[derive(Clone, Debug, FromQueryResult)]
pub struct AccountEntry {
    pub id: String,
    pub name: String,
    pub created_at: OffsetDateTime,
}

/// Accounts in the order of their ids, after `after`.
pub async fn account_directory(
    database: &Database,
    after: Option<&str>,
    limit: i32,
) -> Result<Vec<AccountEntry>, StorageError> {
    let tx = database.begin(&Accounts::none()).await?;
    let values = [after.map(str::to_owned).into(), limit.into()];
    let entries = AccountEntry::find_by_statement(statement("select * from account_directory($1, $2)", values))
        .all(&*tx)
        .await;
    tx.commit().await?;
    entries.attempt("list accounts")
}

#[derive(FromQueryResult)]
struct Found {
    account_id: String,
    session_id: Uuid,
}

/// Sessions that something should happen to and nobody is seeing to, behind `after` in their order.
pub async fn session_neglected(
    database: &Database,
    after: Option<&(AccountId, SessionId)>,
    limit: i32,
) -> Result<Vec<(AccountId, SessionId)>, StorageError> {
    let (account, session) = after.map_or(("", Uuid::nil()), |(account, session)| {
        (account.as_str(), session.uuid())
    });
    find(
        database,
        "find neglected sessions",
        statement(
            "select * from session_neglected($1, $2, $3)",
            [account.into(), session.into(), limit.into()],
        ),
    )
    .await
}

/// Closed sessions whose time is over, and that are not emptied yet.
pub async fn session_outlived(
    database: &Database,
    older_than: OffsetDateTime,
    limit: i32,
) -> Result<Vec<(AccountId, SessionId)>, StorageError> {
    find(
        database,
        "find expired sessions",
        statement(
            "select * from session_outlived($1, $2)",
            [older_than.into(), limit.into()],
        ),
    )
    .await
}

#[derive(FromQueryResult)]
struct Refused {
    account_id: String,
    notification_id: String,
}

/// Refused notifications whose time is over, the oldest first.
pub async fn notification_refused(
    database: &Database,
    older_than: OffsetDateTime,
    limit: i32,
) -> Result<Vec<(AccountId, String)>, StorageError> {
    const ATTEMPT: &str = "find refused notifications";
    let tx = database.begin(&Accounts::none()).await?;
    let values = [older_than.into(), limit.into()];
    let found = Refused::find_by_statement(statement("select * from notification_refused($1, $2)", values))
        .all(&*tx)
        .await;
    tx.commit().await?;
    found
        .attempt(ATTEMPT)?
        .into_iter()
        .map(|row| {
            let account =
                AccountId::parse(&row.account_id).map_err(|error| StorageError::unreadable(ATTEMPT, error))?;
            Ok((account, row.notification_id))
        })
        .collect()
}

async fn find(
    database: &Database,
    attempt: &'static str,
    query: sea_orm::Statement,
) -> Result<Vec<(AccountId, SessionId)>, StorageError> {
    let tx = database.begin(&Accounts::none()).await?;
    let found = Found::find_by_statement(query).all(&*tx).await;
    tx.commit().await?;
    found
        .attempt(attempt)?
        .into_iter()
        .map(|row| {
            let account =
                AccountId::parse(&row.account_id).map_err(|error| StorageError::unreadable(attempt, error))?;
            Ok((account, SessionId(row.session_id)))
        })
        .collect()
}
