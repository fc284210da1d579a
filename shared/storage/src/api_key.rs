//! The holder of an API key. Read by the two services that authenticate callers: the orchestrator and the tool-gateway.
//! The orchestrator writes keys; the form of a key is in `domain::api_key`.

use domain::{AccountId, Actor, ActorKind, AgentId, ApiKey, KeyId, KeyRole, MemberRole, UserId};
use sea_orm::FromQueryResult;

use crate::{StorageError, Tx};

/// The holder of a valid key: found, matched, neither revoked nor expired.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyHolder {
    pub account: AccountId,
    pub id: KeyId,
    pub name: String,
    /// What the holder may do: of a person's key, at most what the person may at present.
    pub role: KeyRole,
    /// The member whose key it is; absent for a key of the account.
    pub person: Option<Person>,
    /// An admin's, in an account whose admins see what is its people's own.
    pub sees_everybody: bool,
    /// The agent whose sessions the key opens. Without it, the key opens every agent's sessions.
    pub agent: Option<AgentId>,
}

/// A member, as an author.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Person {
    pub id: UserId,
    pub name: String,
}

impl Person {
    pub fn actor(&self) -> Actor {
        Actor {
            kind: ActorKind::User,
            id: self.id.to_string(),
            name: self.name.clone(),
            via: None,
        }
    }
}

#[derive(FromQueryResult)]
struct Stored {
    name: String,
    role: KeyRole,
    digest: Vec<u8>,
    agent_id: Option<AgentId>,
    user_id: Option<UserId>,
    member_name: Option<String>,
    member_role: Option<MemberRole>,
    admins_see: Option<bool>,
}

/// Relies on the primary keys. The digest is compared here, in constant time, and not by the database.
pub const API_KEY_FIND: &str = "
    select k.name, k.role, k.digest, k.agent_id, k.user_id, m.name as member_name, m.role as member_role,
           case when k.role = 'admin' then (
               select a.orchestrators_visible_to_admins from account a where a.id = k.account_id) end as admins_see
    from api_key k
    left join lateral (
        select m.name, m.role from member m
        where m.account_id = k.account_id and m.user_id = k.user_id and m.removed_at is null offset 0) m on true
    where k.account_id = $1 and k.id = $2 and k.revoked_at is null and (k.expires_at is null or k.expires_at > now())";

/// The holder of this key; `None` if the key is unknown, revoked or expired, or if its person is no member any more. `tx` has
/// declared the key's account. The result is not cached: a revocation or another role takes effect with the next request.
pub async fn api_key_holder(tx: &Tx, key: &ApiKey) -> Result<Option<KeyHolder>, StorageError> {
    let values = [key.account().into(), key.id().as_str().into()];
    let stored: Option<Stored> = tx.one("look up API key", API_KEY_FIND, values).await?;
    Ok(stored.filter(|stored| key.matches(&stored.digest)).and_then(|stored| {
        let (role, person) = match (stored.user_id, stored.member_name, stored.member_role) {
            (None, _, _) => (stored.role, None),
            (Some(id), Some(name), Some(member)) => (member.limits(stored.role), Some(Person { id, name })),
            (Some(_), _, _) => return None,
        };
        Some(KeyHolder {
            account: key.account().clone(),
            id: key.id().clone(),
            name: stored.name,
            sees_everybody: role == KeyRole::Admin && stored.admins_see == Some(true),
            role,
            person,
            agent: stored.agent_id,
        })
    }))
}
