//! Replaces and removes refused items. [`super::items_append()`] stores them.

use domain::{AccountId, NotificationId};

use crate::{StorageError, Tx, statement::pairs};

/// The refused row of a whole notification whose parts now replace it. Relies on the primary key; the state is compared
/// as in [`super::items_append::ITEMS_REQUEUE`].
pub const REFUSED_REPLACE: &str = "
    delete from notification n using unnest($1::text[], $2::text[]) as r (account_id, id)
    where n.account_id = any (array[r.account_id]) and n.id = r.id and coalesce(n.state = 'refused', false)";

pub async fn refused_replace(tx: &Tx, wholes: &[(AccountId, NotificationId)]) -> Result<(), StorageError> {
    if wholes.is_empty() {
        return Ok(());
    }
    let (accounts, ids) = pairs(wholes);
    let values = [accounts.into(), ids.into()];
    let replaced = tx.execute("replace refused notifications", REFUSED_REPLACE, values);
    replaced.await.map(|_| ())
}

/// Relies on the primary key. A row that was redriven meanwhile is no longer refused.
pub const REFUSED_REMOVE: &str = "
    delete from notification where ctid = any (array(
        select n.ctid from (select $1 as account_id, unnest($2::text[]) as id offset 0) w
        join notification n on n.account_id = any (array[w.account_id]) and n.id = w.id
        where coalesce(n.state = 'refused', false) for update of n skip locked))";

/// Removes refused notifications of one account; returns how many. Idempotent.
pub async fn refused_remove(tx: &Tx, account: &AccountId, ids: Vec<String>) -> Result<u64, StorageError> {
    let values = [account.into(), ids.into()];
    tx.execute("remove refused notifications", REFUSED_REMOVE, values).await
}
