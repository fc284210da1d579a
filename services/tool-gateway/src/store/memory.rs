//! Whose words a turn is about.

use domain::{AccountId, TurnId, UserId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

/// Whose words a turn is about, and who reads what it answers.
#[derive(Clone, Copy, Debug, FromQueryResult)]
pub(crate) struct Surroundings {
    /// Another person, or another service than Signalbox, has written something of it.
    pub is_foreign: bool,
    /// Others read the answer.
    pub is_shared: bool,
}

/// What is not known is neither the person's own nor private. Relies on primary keys.
pub const TURN_SURROUNDINGS: &str = concat!(
    "
    select coalesce(bool_or(",
    storage::is_foreign!("n", "$3"),
    "), true) as is_foreign, coalesce(bool_or(",
    storage::is_shared!("n"),
    "), true) as is_shared
    from (select t.account_id, unnest(t.notification_ids) as id from turn t where t.account_id = $1 and t.id = $2 offset 0) w
    left join notification n on n.account_id = any (array[w.account_id]) and n.id = w.id"
);

/// Of a turn of this person's orchestrator.
pub(crate) async fn turn_surroundings(
    tx: &Tx,
    account: &AccountId,
    turn: TurnId,
    user: &UserId,
) -> Result<Surroundings, StorageError> {
    const ATTEMPT: &str = "look whose words a turn is about";
    let values = [account.into(), turn.into(), user.into()];
    let found = tx.one(ATTEMPT, TURN_SURROUNDINGS, values).await?;
    found.ok_or_else(|| StorageError::unreadable(ATTEMPT, "no row"))
}
