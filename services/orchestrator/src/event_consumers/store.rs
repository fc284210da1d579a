//! Every query on event consumers. The guard has checked that the account exists.

use domain::{AccountId, EventConsumerName};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};

#[derive(FromQueryResult)]
struct Stored {
    event_consumers: Vec<String>,
}

const FIND: &str = "select event_consumers from account where id = $1";

/// Their names, in the order in which they were made.
pub async fn event_consumers(tx: &Tx, account: &AccountId) -> Result<Vec<String>, StorageError> {
    let found: Option<Stored> = tx.one("read event consumers", FIND, [account.into()]).await?;
    Ok(found.map(|stored| stored.event_consumers).unwrap_or_default())
}

const ADD: &str = "
    update account set event_consumers = array_append(event_consumers, $2)
    where id = $1 and not $2 = any (event_consumers) and cardinality(event_consumers) < $3";

/// `false`: it is there, or there is no room.
pub async fn event_consumer_add(
    tx: &Tx,
    account: &AccountId,
    name: &EventConsumerName,
    count_max: i32,
) -> Result<bool, StorageError> {
    let values = [account.into(), name.as_str().into(), count_max.into()];
    Ok(tx.execute("add event consumer", ADD, values).await? == 1)
}

const REMOVE: &str = "
    update account set event_consumers = array_remove(event_consumers, $2) where id = $1 and $2 = any (event_consumers)";

/// `false`: it was not there.
pub async fn event_consumer_remove(
    tx: &Tx,
    account: &AccountId,
    name: &EventConsumerName,
) -> Result<bool, StorageError> {
    let values = [account.into(), name.as_str().into()];
    Ok(tx.execute("remove event consumer", REMOVE, values).await? == 1)
}
