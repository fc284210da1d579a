//! The holder of an API key. Read by the two services that authenticate callers: the orchestrator and the tool-gateway.
//! The orchestrator writes keys; the form of a key is in `domain::api_key`.

use domain::{AccountId, AgentId, ApiKey, KeyId, KeyRole};
use sea_orm::FromQueryResult;

use crate::{StorageError, Tx};

/// The holder of a valid key: found, matched, neither revoked nor expired.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyHolder {
    pub account: AccountId,
    pub id: KeyId,
    pub name: String,
    pub role: KeyRole,
    /// The agent whose sessions the key opens. Without it, the key opens every agent's sessions.
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

/// The holder of this key; `None` if the key is unknown, revoked or expired. `tx` has declared the key's account. The
/// result is not cached: a revocation takes effect with the next request.
pub async fn api_key_holder(tx: &Tx, key: &ApiKey) -> Result<Option<KeyHolder>, StorageError> {
    let values = [key.account().into(), key.id().as_str().into()];
    let stored: Option<Stored> = tx.one("look up API key", API_KEY_FIND, values).await?;
    let matching = stored.filter(|stored| key.matches(&stored.digest));
    Ok(matching.map(|stored| KeyHolder {
        account: key.account().clone(),
        id: key.id().clone(),
        name: stored.name,
        role: stored.role,
        agent: stored.agent_id,
    }))
}
