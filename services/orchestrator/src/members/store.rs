//! Every query on members, but for who the holder of a key is (`storage::api_key`). Removed members stay in the table, since
//! messages, activities and keys name them, and are not found here.

use std::collections::BTreeSet;

use api::members::{MeChange, Member, MemberChange};
use domain::{AccountId, Email, MemberRole, SignInToken, UserId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx, accounts::account_lock};
use time::OffsetDateTime;
use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::paging::{Column, Listing, Order};

macro_rules! member {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " user_id, name, email, role, time_zone, login_id is not null as signed_in, created_at ",
            $after
        )
    };
}

/// A member, in any account.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Membership {
    pub account_id: AccountId,
    pub user_id: UserId,
}

/// A member to be.
#[derive(Debug)]
pub struct NewMember<'a> {
    pub user: &'a UserId,
    pub name: &'a str,
    pub email: Option<&'a Email>,
    pub role: MemberRole,
}

/// A removed member returns by the e-mail address that they had; their keys stay revoked.
const INSERT: &str = member!(
    "insert into member as m (account_id, user_id, name, email, role, created_at) values ($1, $2, $3, $4, $5, $6)
     on conflict (account_id, user_id) do update set name = excluded.name, role = excluded.role, removed_at = null
     where m.removed_at is not null and m.email = excluded.email
     returning",
    ""
);

/// `None`: the id is, or was, another person's. Fails with a unique violation when a member has the address.
pub async fn member_insert(
    tx: &Tx,
    account: &AccountId,
    new: NewMember<'_>,
    now: OffsetDateTime,
) -> Result<Option<Member>, StorageError> {
    let values = [
        account.into(),
        new.user.into(),
        new.name.into(),
        address(new.email).into(),
        new.role.into(),
        now.into(),
    ];
    tx.one("make member", INSERT, values).await
}

fn address(email: Option<&Email>) -> Option<String> {
    email.map(|email| email.as_str().to_owned())
}

#[derive(FromQueryResult)]
struct Id {
    user_id: UserId,
}

/// Relies on member_removed.
pub const RETURNING: &str = "
    select user_id from member where account_id = $1 and email = $2 and removed_at is not null
    order by removed_at desc limit 1";

/// The id of a removed member who had the address.
pub async fn member_removed(tx: &Tx, account: &AccountId, email: &Email) -> Result<Option<UserId>, StorageError> {
    let values = [account.into(), email.as_str().into()];
    let found: Option<Id> = tx.one("find removed member", RETURNING, values).await?;
    Ok(found.map(|found| found.user_id))
}

pub const FIND: &str = member!(
    "select",
    "from member where account_id = $1 and user_id = $2 and removed_at is null"
);

pub async fn member_find(tx: &Tx, account: &AccountId, user: &UserId) -> Result<Option<Member>, StorageError> {
    tx.one("find member", FIND, [account.into(), user.into()]).await
}

const LOCK: &str = member!(
    "select",
    "from member where account_id = $1 and user_id = $2 and removed_at is null for no key update"
);

/// The same, locked: who changes, removes, or gives a key to a member comes after the other. Mail to the member goes on.
pub async fn member_lock(tx: &Tx, account: &AccountId, user: &UserId) -> Result<Option<Member>, StorageError> {
    tx.one("lock member", LOCK, [account.into(), user.into()]).await
}

/// In the order of their ids. Relies on the primary key. Its second parameter says whether addresses are shown.
pub const LIST: Listing = Listing {
    rows: "select account_id, user_id, name, case when $2 then email end as email, role, time_zone,
            login_id is not null as signed_in, created_at, removed_at
        from member where account_id = $1",
    order: &[("user_id", Column::Text)],
    begins: Order::OldestFirst,
    wanted: Some("removed_at is null"),
    bytes: "octet_length(name) + coalesce(octet_length(email), 0)",
    names: ("", ""),
};

const CHANGE: &str = member!(
    "update member set name = coalesce($3, name), role = coalesce($4, role), email = case when $5 then $6 else email end,
         address_proven = address_proven and not ($5 and email is distinct from $6)
     where account_id = $1 and user_id = $2 and removed_at is null
     returning",
    ""
);

/// Fails with a unique violation when another member has the address. Whoever has signed in gets no sign-in link at an address that an admin
/// gave them: the admin would come in as them.
pub async fn member_change(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    change: MemberChange,
) -> Result<Option<Member>, StorageError> {
    let values = [
        account.into(),
        user.into(),
        change.name.map(String::from).into(),
        change.role.into(),
        change.email.is_some().into(),
        address(change.email.flatten().as_ref()).into(),
    ];
    tx.one("change member", CHANGE, values).await
}

const CHANGE_OWN: &str = member!(
    "update member set name = coalesce($3, name), time_zone = coalesce($4, time_zone)
     where account_id = $1 and user_id = $2 and removed_at is null
     returning",
    ""
);

pub async fn member_change_own(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    change: MeChange,
) -> Result<Option<Member>, StorageError> {
    let values = [
        account.into(),
        user.into(),
        change.name.map(String::from).into(),
        change.time_zone.map(String::from).into(),
    ];
    tx.one("change member", CHANGE_OWN, values).await
}

/// The server's own list, without its other spellings: moments of a person's day are computed by the server. The server reads a file
/// for each of them.
const TIME_ZONES: &str =
    "select name from pg_catalog.pg_timezone_names where name !~ '^(posix|right)/|^(localtime|posixrules|Factory)$'";

#[derive(FromQueryResult)]
struct TimeZone {
    name: String,
}

/// By the server's list, which a process reads once.
pub async fn time_zone_exists(tx: &Tx, name: &str) -> Result<bool, StorageError> {
    static KNOWN: OnceCell<BTreeSet<String>> = OnceCell::const_new();
    let read = async || {
        let zones: Vec<TimeZone> = tx.rows("read time zones", TIME_ZONES, []).await?;
        Ok(zones.into_iter().map(|zone| zone.name).collect())
    };
    Ok(KNOWN.get_or_try_init(read).await?.contains(name))
}

/// Relies on member_admin.
pub const OTHER_ADMIN: &str = "
    select 1 from member o where o.account_id = $1 and o.role = 'admin' and o.removed_at is null and o.user_id <> $2
      and (o.login_id is not null
        or exists (select from member m where m.account_id = $1 and m.user_id = $2 and m.login_id is null offset 0))
    limit 1";

/// Whether the account has another admin among its members. For a member who has signed in, one who has, too: an invitation may never
/// be used. Locks the account's row, and so comes before locks of members.
pub async fn has_other_admin(tx: &Tx, account: &AccountId, user: &UserId) -> Result<bool, StorageError> {
    account_lock(tx, account).await?;
    tx.exists("find another admin", OTHER_ADMIN, [account.into(), user.into()])
        .await
}

const HOLD: &str = "select from member where account_id = $1 and user_id = $2 for update";
/// The login stays: whoever lets the person in again does not get a link that signs in as them.
const REMOVE: &str = "
    update member set removed_at = $3, link_digest = null, link_expires_at = null, link_used_at = null
    where account_id = $1 and user_id = $2 and removed_at is null";
/// Relies on api_key_person.
pub const KEYS_REVOKE: &str = "
    update api_key set revoked_at = $3 where account_id = $1 and user_id = $2 and revoked_at is null";

/// Removes a member, with their keys and their link. The member's row is locked.
pub async fn member_remove(
    tx: &Tx,
    account: &AccountId,
    user: &UserId,
    now: OffsetDateTime,
) -> Result<(), StorageError> {
    let values = || [account.into(), user.into(), now.into()];
    // No mail is written to the person from here on.
    tx.execute("hold member", HOLD, [account.into(), user.into()]).await?;
    tx.execute("remove member", REMOVE, values()).await?;
    tx.execute("revoke a member's keys", KEYS_REVOKE, values()).await?;
    Ok(())
}

const LINK: &str = "
    update member set link_digest = $3, link_expires_at = $4, link_used_at = null, link_mailed = $5, link_rebinds = $6
    where account_id = $1 and user_id = $2 and removed_at is null";

/// What a link is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkFor {
    /// Whoever makes it hands it on.
    Hand,
    /// It is mailed to the member's address, which is proven if somebody comes in by it who is not signed in.
    Mail,
    /// The member leaves the login that they have.
    AnotherLogin,
}

/// Makes this the member's one link. `false`: the account has no such member.
pub async fn link_set(
    tx: &Tx,
    user: &UserId,
    token: &SignInToken,
    (expires_at, purpose): (OffsetDateTime, LinkFor),
) -> Result<bool, StorageError> {
    let values = [
        token.account().into(),
        user.into(),
        token.digest().to_vec().into(),
        expires_at.into(),
        (purpose == LinkFor::Mail).into(),
        (purpose == LinkFor::AnotherLogin).into(),
    ];
    Ok(tx.execute("make sign-in link", LINK, values).await? == 1)
}

/// A link that was found.
#[derive(Debug, FromQueryResult)]
pub struct Link {
    pub user_id: UserId,
    pub name: String,
    pub role: MemberRole,
    pub expires_at: OffsetDateTime,
    pub used_at: Option<OffsetDateTime>,
}

/// Relies on member_link.
pub const LINK_FIND: &str = "
    select user_id, name, role, link_expires_at as expires_at, link_used_at as used_at from member
    where account_id = $1 and link_digest = $2 and removed_at is null";

/// The link of this token, used or not.
pub async fn link_find(tx: &Tx, token: &SignInToken) -> Result<Option<Link>, StorageError> {
    let values = [token.account().into(), token.digest().to_vec().into()];
    tx.one("find sign-in link", LINK_FIND, values).await
}

/// Of two that use it at one time, one finds it unused. Relies on member_link.
pub const LINK_USE: &str = "
    update member set link_used_at = now(), address_proven = address_proven or link_mailed and $3::uuid is null,
        login_id = case when link_rebinds then coalesce($3, $4) else coalesce(login_id, $3, $4) end
    where account_id = $1 and link_digest = $2 and link_used_at is null and link_expires_at > now() and removed_at is null
    returning login_id";

#[derive(FromQueryResult)]
struct Login {
    login_id: Uuid,
}

/// A member who has a login keeps it, unless the link is for another one; else they are bound to the present login, if there is one, or get
/// one. Gives the login; none: the link is over, or was used.
pub async fn link_use(tx: &Tx, token: &SignInToken, present: Option<Uuid>) -> Result<Option<Uuid>, StorageError> {
    let values = [
        token.account().into(),
        token.digest().to_vec().into(),
        present.into(),
        Uuid::now_v7().into(),
    ];
    let used: Option<Login> = tx.one("use sign-in link", LINK_USE, values).await?;
    Ok(used.map(|used| used.login_id))
}
