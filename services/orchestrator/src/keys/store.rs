//! Every query on keys, but for authentication (`storage::api_key`).

use api::keys::NewKey;
use domain::{AccountId, AgentId, ApiKey, KeyId};
use storage::{StorageError, Tx};
use time::OffsetDateTime;

use crate::paging::{Column, Listing, Order};

const KEY_INSERT: &str = "
    insert into api_key (account_id, id, name, role, digest, created_at, expires_at, agent_id)
    values ($1, $2, $3, $4, $5, $6, $7, $8)";

pub async fn key_insert(
    tx: &Tx,
    key: &ApiKey,
    new: &NewKey,
    agent: Option<AgentId>,
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let values = [
        key.account().into(),
        key.id().as_str().into(),
        new.name.to_string().into(),
        new.role.into(),
        key.digest().to_vec().into(),
        now.into(),
        new.expires_at.into(),
        agent.into(),
    ];
    tx.execute("make key", KEY_INSERT, values).await.map(|_| ())
}

/// Relies on api_key_oldest.
pub const LIST: Listing = Listing {
    rows: "select account_id, id, name, role, digest, created_at, revoked_at, expires_at, agent_id
        from api_key where account_id = $1",
    order: &[("created_at", Column::Time), ("id", Column::Text)],
    begins: Order::OldestFirst,
    wanted: Some("revoked_at is null"),
    bytes: "octet_length(name)",
    names: ("", ""),
};

const KEY_REVOKE: &str = "
    update api_key set revoked_at = $3 where account_id = $1 and id = $2 and revoked_at is null";

/// `false`: the key does not exist or was revoked before.
pub async fn key_revoke(tx: &Tx, account: &AccountId, key: &KeyId, now: OffsetDateTime) -> Result<bool, StorageError> {
    let values = [account.into(), key.as_str().into(), now.into()];
    Ok(tx.execute("revoke key", KEY_REVOKE, values).await? == 1)
}
