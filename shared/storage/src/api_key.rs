//! Who holds an API key. Read by the two services that let people and programs in: the orchestrator and the
//! tool-gateway. The orchestrator writes keys; the form of a key is `domain::api_key`.

use domain::{AccountId, AgentId, ApiKey, KeyId, KeyRole};
use sea_orm::FromQueryResult;

use crate::{StorageError, Tx};

/// The holder of a key that was found, matched, and is neither revoked nor expired.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyHolder {
    pub account: AccountId,
    pub id: KeyId,
    pub name: String,
    pub role: KeyRole,
    /// Whose sessions it opens; everybody's without it.
    pub agent: Option<AgentId>,
}

#[derive(FromQueryResult)]
struct Stored {
    name: String,
    role: KeyRole,
    digest: Vec<u8>,
    agent_id: Option<AgentId>,
}

/// Relies on the primary key. The digest is compared here, in constant time, and not by the database.
const API_KEY_FIND: &str = "
    select name, role, digest, agent_id from api_key
    where account_id = $1 and id = $2 and revoked_at is null and (expires_at is null or expires_at > now())";

/// Who holds this key; `None` when nobody does, or no longer. `tx` has declared the key's account. Nothing is cached:
/// a revoked key is worth nothing from the next request on.
pub async fn api_key_holder(tx: &Tx, key: &ApiKey) -> Result<Option<KeyHolder>, StorageError> {
    let values = [key.account().into(), key.id().as_str().into()];
    let stored: Option<Stored> = tx.one("look an API key up", API_KEY_FIND, values).await?;
    let matching = stored.filter(|stored| key.matches(&stored.digest));
    Ok(matching.map(|stored| KeyHolder {
        account: key.account().clone(),
        id: key.id().clone(),
        name: stored.name,
        role: stored.role,
        agent: stored.agent_id,
    }))
}
