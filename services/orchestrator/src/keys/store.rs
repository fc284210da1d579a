//! Every query on keys, but for authentication (`storage::api_key`).

use domain::{AccountId, ApiKey, KeyId, Timestamp, UserId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::OffsetDateTime;

use super::NewKey;
use crate::paging::{Column, Listing, Order};

const KEY_INSERT: &str = "
    insert into api_key (account_id, id, name, role, digest, created_at, expires_at, agent_id, user_id)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9)";

pub async fn key_insert(tx: &Tx, key: &ApiKey, new: &NewKey<'_>, now: OffsetDateTime) -> Result<(), StorageError> {
    let values = [
        key.account().into(),
        key.id().as_str().into(),
        new.name.into(),
        new.role.into(),
        key.digest().to_vec().into(),
        now.into(),
        new.expires_at.into(),
        new.agent.into(),
        new.user.cloned().into(),
    ];
    tx.execute("make key", KEY_INSERT, values).await.map(|_| ())
}

/// Relies on api_key_oldest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, name, role, digest, created_at, revoked_at, expires_at, agent_id, user_id
        from api_key where account_id = $1",
    order: &[("created_at", Column::Time), ("id", Column::Text)],
    begins: Order::OldestFirst,
    wanted: Some("revoked_at is null"),
    bytes: "octet_length(name)",
    names: ("", ""),
};

/// A person's own keys that are not revoked. Relies on api_key_person.
pub const OWN: Listing = Listing {
    rows: "select account_id, id, name, role, digest, created_at, revoked_at, expires_at, agent_id, user_id
        from api_key where account_id = $1 and user_id = $2 and revoked_at is null",
    wanted: None,
    ..LIST
};

/// Keys of one person that are not revoked, expired ones included.
pub const OWN_KEYS_MAX: i64 = 50;

pub const OWN_KEYS: &str = "
    select 1 from api_key where account_id = $1 and user_id = $2 and revoked_at is null
    offset $3 limit 1";

/// Whether the person may have one more. The person's row is locked.
pub async fn has_room(tx: &Tx, account: &AccountId, user: &UserId) -> Result<bool, StorageError> {
    let values = [account.into(), user.into(), (OWN_KEYS_MAX - 1).into()];
    Ok(!tx.exists("count a person's keys", OWN_KEYS, values).await?)
}

/// A key that is held.
#[derive(Debug, FromQueryResult)]
pub struct HeldKey {
    /// None: never.
    pub expires_at: Option<Timestamp>,
    pub role: String,
}

const KEY_HOLD: &str = "
    select expires_at, role from api_key where account_id = $1 and id = $2 and revoked_at is null for share";

/// A key that is not revoked, and is not until the end of the transaction.
pub async fn key_hold(tx: &Tx, account: &AccountId, key: &str) -> Result<Option<HeldKey>, StorageError> {
    tx.one("hold a key", KEY_HOLD, [account.into(), key.into()]).await
}

const KEY_REVOKE: &str = "
    update api_key set revoked_at = $3
    where account_id = $1 and id = $2 and revoked_at is null and ($4::text is null or user_id = $4)
    returning user_id, role";

/// A key that was revoked, whose own it was, and with which role it was made.
#[derive(Debug, FromQueryResult)]
pub struct Revoked {
    pub user_id: Option<UserId>,
    pub role: String,
}

/// With `user`, only that person's own. `None`: the key does not exist or was revoked before.
pub async fn key_revoke(
    tx: &Tx,
    account: &AccountId,
    key: &KeyId,
    user: Option<&UserId>,
    now: OffsetDateTime,
) -> Result<Option<Revoked>, StorageError> {
    let values = [account.into(), key.as_str().into(), now.into(), user.cloned().into()];
    tx.one("revoke key", KEY_REVOKE, values).await
}
