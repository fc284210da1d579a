//! Who holds an API key. Read by the two services that let people and programs in: the orchestrator and the
//! tool-gateway. The orchestrator writes keys; the form of a key is `domain::api_key`.

use domain::{AccountId, AgentId, ApiKey, KeyId, KeyRole};
use sea_orm::FromQueryResult;
use uuid::Uuid;

use crate::{StorageError, Tx, error::Attempt, statement};

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
    role: String,
    digest: Vec<u8>,
    agent_id: Option<Uuid>,
}

/// Relies on the primary key. The digest is compared here, in constant time, and not by the database.
const API_KEY_FIND: &str = "
    select name, role, digest, agent_id from api_key
    where account_id = $1 and id = $2 and revoked_at is null and (expires_at is null or expires_at > now())";

/// Who holds this key; `None` when nobody does, or no longer. `tx` has declared the key's account. Nothing is cached:
/// a revoked key is worth nothing from the next request on.
pub async fn api_key_holder(tx: &Tx, key: &ApiKey) -> Result<Option<KeyHolder>, StorageError> {
    let values = [key.account().as_str().into(), key.id().as_str().into()];
    let stored = Stored::find_by_statement(statement(API_KEY_FIND, values))
        .one(&**tx)
        .await
        .attempt("look an API key up")?;
    let Some(stored) = stored.filter(|stored| key.matches(&stored.digest)) else {
        return Ok(None);
    };
    let role =
        KeyRole::parse(&stored.role).ok_or_else(|| StorageError::unreadable("look an API key up", &stored.role))?;
    Ok(Some(KeyHolder {
        account: key.account().clone(),
        id: key.id().clone(),
        name: stored.name,
        role,
        agent: stored.agent_id.map(AgentId),
    }))
}
