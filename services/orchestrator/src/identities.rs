//! Every query on identities of orchestrators: who makes and removes people, and who changes and reads an orchestrator.

use api::orchestrators::{Identity, IdentityChange};
use domain::{AccountId, Handle, Owner, UserId, identity};
use storage::{StorageError, Tx, accounts::account_lock};
use time::OffsetDateTime;
use uuid::Uuid;

/// An owner in the primary key: of the account's orchestrator, empty.
pub(crate) fn key(owner: &Owner) -> String {
    owner.user().map_or_else(String::new, ToString::to_string)
}

macro_rules! identity {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " user_id, name, handle, avatar, style, instructions as custom_instructions, reachable, enabled, revision ",
            $after
        )
    };
}

/// Its slug is its id: no agent of the account can have it, nor get it. Relies on agent_orchestrator.
const AGENT_MAKE: &str = "
    insert into agent (account_id, id, slug, name, role, provider, created_at, removed_at, kind)
    select a.id, $2, $2::text, 'Orchestrator', '', coalesce(a.orchestrator_provider, $3), $4, $4, 'orchestrator'
    from account a where a.id = $1
    on conflict do nothing";

const INSERT: &str = "
    insert into orchestrator_identity (account_id, user_id, name, handle)
    select $1, nullif($2, ''), $3, $4
    where not exists (select from agent a where a.account_id = $1 and a.slug = $4 and a.removed_at is null)
    on conflict do nothing";

/// Handles that are tried, of those that a name suggests.
const NUMBERS_MAX: usize = 20;

/// Makes an identity, and the account's hidden agent if this is its first one. The handle is the first free one of `suggested` and
/// that with a number.
pub async fn identity_make(
    tx: &Tx,
    account: &AccountId,
    (owner, suggested): (&Owner, &Handle),
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    const ATTEMPT: &str = "make identity of orchestrator";
    let agent = [
        account.into(),
        Uuid::now_v7().into(),
        crate::agents::PROVIDER_DEFAULT.into(),
        now.into(),
    ];
    tx.execute("make hidden agent", AGENT_MAKE, agent).await?;
    let numbered = (2..=NUMBERS_MAX).map(|number| suggested.numbered(number));
    let unlikely = Handle::parse(&Uuid::now_v7().to_string());
    let unlikely = unlikely.map_err(|error| StorageError::unreadable(ATTEMPT, error))?;
    for handle in std::iter::once(suggested.clone()).chain(numbered).chain([unlikely]) {
        let values = [account.into(), key(owner).into(), identity::NAME.into(), handle.into()];
        if tx.execute(ATTEMPT, INSERT, values).await? == 1 {
            break;
        }
    }
    Ok(())
}

/// Of a person who has none: an older version made the member.
pub async fn identity_ensure(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let owner = Owner::User(user.clone());
    if identity_find(tx, account, &owner).await?.is_none() {
        account_lock(tx, account).await?;
        identity_make(tx, account, (&owner, &Handle::of_user(user)), now).await?;
    }
    Ok(())
}

/// Relies on the primary key.
pub const FIND: &str = identity!(
    "select",
    "from orchestrator_identity where account_id = $1 and owner = $2"
);

pub async fn identity_find(tx: &Tx, account: &AccountId, owner: &Owner) -> Result<Option<Identity>, StorageError> {
    tx.one("find identity", FIND, [account.into(), key(owner).into()]).await
}

/// A prompt shows the name, the handle, the style and the instructions; to a guest, the reach.
const CHANGE: &str = identity!(
    "update orchestrator_identity set name = coalesce($3, name), handle = coalesce($4, handle),
         avatar = case when $5 then $6 else avatar end, style = coalesce($7, style), instructions = coalesce($8, instructions),
         reachable = coalesce($9, reachable), enabled = coalesce($10, enabled),
         revision = revision + (($3, $4, $7, $8, $9) is distinct from (null, null, null, null, null))::integer
     where account_id = $1 and owner = $2
     returning",
    ""
);

/// Fails with a unique violation when another orchestrator has the handle. The caller has locked the account, and found no agent of that
/// name.
pub async fn identity_change(
    tx: &Tx,
    account: &AccountId,
    owner: &Owner,
    change: IdentityChange,
) -> Result<Option<Identity>, StorageError> {
    let (is_avatar, avatar) = (change.avatar.is_some(), change.avatar.flatten().map(String::from));
    let values = [
        account.into(),
        key(owner).into(),
        change.name.map(String::from).into(),
        change.handle.into(),
        is_avatar.into(),
        avatar.into(),
        change.style.into(),
        change.custom_instructions.map(String::from).into(),
        change.reachable.into(),
        change.enabled.into(),
    ];
    tx.one("change identity", CHANGE, values).await
}

const REMOVE: &str = "delete from orchestrator_identity where account_id = $1 and owner = $2";

/// Its handle is free again.
pub async fn identity_remove(tx: &Tx, account: &AccountId, owner: &Owner) -> Result<(), StorageError> {
    let values = [account.into(), key(owner).into()];
    tx.execute("remove identity", REMOVE, values).await.map(drop)
}
