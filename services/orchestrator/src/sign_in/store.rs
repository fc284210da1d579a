//! Every query on logins: their browser sessions, identities and tokens, and whose they are. These tables have no account.

use domain::{AccountId, Email, KeyId, UserId};
use sea_orm::FromQueryResult;
use storage::{StorageError, Tx};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::secret::Secret;
use crate::members::store::Membership;

/// Browser sessions of one login; a further one ends the one that was used least recently.
pub const SESSIONS_MAX: i64 = 50;
/// Accounts of one login, and members of one e-mail address, that are read.
pub const ACCOUNTS_MAX: i32 = 200;

/// A browser session to be.
#[derive(Debug)]
pub struct NewSession<'a> {
    pub secret: &'a Secret,
    pub login: Uuid,
    pub method: &'a str,
    /// The key that opens it.
    pub key: Option<(&'a AccountId, &'a KeyId)>,
    pub expires_at: OffsetDateTime,
    pub idle: Duration,
}

/// Relies on login_session_login.
pub const SESSIONS_TRIM: &str = "
    delete from login_session where digest = any (array(
        select digest from login_session where login_id = $1 order by seen_at desc offset $2))";

const SESSION_INSERT: &str = "
    insert into login_session (digest, id, login_id, method, key_account, key_id, expires_at, ends_at)
    values ($1, $2, $3, $4, $5, $6, $7, least($7, now() + $8 * interval '1 second'))";

pub async fn session_insert(tx: &Tx, new: &NewSession<'_>) -> Result<Uuid, StorageError> {
    let trim = [new.login.into(), (SESSIONS_MAX - 1).into()];
    tx.execute("end old browser sessions", SESSIONS_TRIM, trim).await?;
    let id = Uuid::now_v7();
    let values = [
        new.secret.digest().into(),
        id.into(),
        new.login.into(),
        new.method.into(),
        new.key.map(|(account, _)| account.to_string()).into(),
        new.key.map(|(_, key)| key.to_string()).into(),
        new.expires_at.into(),
        new.idle.as_seconds_f64().into(),
    ];
    tx.execute("make browser session", SESSION_INSERT, values).await?;
    Ok(id)
}

/// A browser that is signed in.
#[derive(Clone, Debug, FromQueryResult)]
pub struct Session {
    pub id: Uuid,
    pub login_id: Uuid,
    /// The key that opened it.
    key_account: Option<AccountId>,
    key_id: Option<KeyId>,
}

impl Session {
    /// The key that opened it, which says how far it reaches.
    pub fn key(&self) -> Option<(&AccountId, &KeyId)> {
        Some((self.key_account.as_ref()?, self.key_id.as_ref()?))
    }
}

/// Notes that it is used, at most every ten minutes. Relies on the primary key.
pub const SESSION_FIND: &str = "
    with seen as (
        update login_session set seen_at = now(), ends_at = least(expires_at, now() + $2 * interval '1 second')
        where digest = $1 and ends_at > now() and seen_at < now() - interval '10 minutes')
    select id, login_id, key_account, key_id from login_session where digest = $1 and ends_at > now()";

pub async fn session_find(tx: &Tx, secret: &Secret, idle: Duration) -> Result<Option<Session>, StorageError> {
    let values = [secret.digest().into(), idle.as_seconds_f64().into()];
    tx.one("find browser session", SESSION_FIND, values).await
}

/// Relies on the primary key.
pub const KEY_LIVES: &str = "
    select 1 from api_key where account_id = $1 and id = $2 and revoked_at is null and (expires_at is null or expires_at > now())";

/// Whether the key is neither revoked nor expired. The transaction has declared its account.
pub async fn key_lives(tx: &Tx, (account, key): (&AccountId, &KeyId)) -> Result<bool, StorageError> {
    let values = [account.into(), key.as_str().into()];
    tx.exists("look for a session's key", KEY_LIVES, values).await
}

/// Relies on the primary key.
pub const SESSION_END: &str = "delete from login_session where digest = $1";

pub async fn session_end(tx: &Tx, secret: &Secret) -> Result<bool, StorageError> {
    let ended = tx
        .execute("end browser session", SESSION_END, [secret.digest().into()])
        .await?;
    Ok(ended == 1)
}

/// Relies on login_session_login.
pub const SESSIONS_END: &str = "delete from login_session where login_id = $1 and ($2::uuid is null or id = $2)";

/// Ends one of a login's browser sessions, or all; returns how many.
pub async fn sessions_end(tx: &Tx, login: Uuid, id: Option<Uuid>) -> Result<u64, StorageError> {
    tx.execute("end browser sessions", SESSIONS_END, [login.into(), id.into()])
        .await
}

/// At most [`SESSIONS_MAX`]. Relies on login_session_login.
pub const SESSIONS_LIST: &str = "
    select id, method, created_at, seen_at, ends_at from login_session
    where login_id = $1 and ends_at > now() order by seen_at desc";

pub async fn sessions_list(tx: &Tx, login: Uuid) -> Result<Vec<api::members::SignIn>, StorageError> {
    tx.rows("list browser sessions", SESSIONS_LIST, [login.into()]).await
}

#[derive(FromQueryResult)]
struct Login {
    login_id: Option<Uuid>,
}

/// Relies on the primary key.
pub const LOGIN_OF: &str = "
    select login_id from member where account_id = $1 and user_id = $2 and removed_at is null";

/// What the member signs in with. None: there is no such member, or they have never signed in.
pub async fn login_of(tx: &Tx, account: &AccountId, user: &UserId) -> Result<Option<Uuid>, StorageError> {
    let found: Option<Login> = tx
        .one("find a member's login", LOGIN_OF, [account.into(), user.into()])
        .await?;
    Ok(found.and_then(|found| found.login_id))
}

pub async fn accounts_of(tx: &Tx, login: Uuid) -> Result<Vec<Membership>, StorageError> {
    const SQL: &str = "select * from login_accounts($1, $2)";
    tx.rows("find a login's accounts", SQL, [login.into(), ACCOUNTS_MAX.into()])
        .await
}

/// The members with this address who have never signed in.
pub async fn members_by_email(tx: &Tx, email: &Email) -> Result<Vec<Membership>, StorageError> {
    const SQL: &str = "select * from member_by_email($1, $2)";
    tx.rows(
        "find members by e-mail",
        SQL,
        [email.as_str().into(), ACCOUNTS_MAX.into()],
    )
    .await
}

/// Relies on the primary key: whether the member is removed is compared in a form that no partial index has.
pub const MEMBER_BIND: &str = "
    update member set login_id = $4, address_proven = true
    where account_id = $1 and user_id = $2 and email = $3 and login_id is null and coalesce(removed_at, 'infinity') = 'infinity'";

/// Binds a member who has never signed in, and has this address still. The transaction has declared the account.
pub async fn member_bind(tx: &Tx, member: &Membership, email: &Email, login: Uuid) -> Result<bool, StorageError> {
    let values = [
        (&member.account_id).into(),
        (&member.user_id).into(),
        email.as_str().into(),
        login.into(),
    ];
    Ok(tx.execute("bind a member to a login", MEMBER_BIND, values).await? == 1)
}

/// Relies on the primary key.
pub const IDENTITY_FIND: &str = "select login_id from login_identity where issuer = $1 and subject = $2";

pub async fn identity_find(tx: &Tx, issuer: &str, subject: &str) -> Result<Option<Uuid>, StorageError> {
    let found: Option<Login> = tx
        .one("find identity", IDENTITY_FIND, [issuer.into(), subject.into()])
        .await?;
    Ok(found.and_then(|found| found.login_id))
}

const IDENTITY_INSERT: &str = "
    insert into login_identity (issuer, subject, login_id) values ($1, $2, $3) on conflict do nothing";

/// `false`: it has a login, perhaps another one.
pub async fn identity_insert(tx: &Tx, issuer: &str, subject: &str, login: Uuid) -> Result<bool, StorageError> {
    let values = [issuer.into(), subject.into(), login.into()];
    Ok(tx.execute("make identity", IDENTITY_INSERT, values).await? == 1)
}

const TOKEN_INSERT: &str = "
    insert into sign_in_token (digest, purpose, payload, expires_at) values ($1, $2, $3, now() + $4 * interval '1 second')";

pub async fn token_insert(
    tx: &Tx,
    secret: &Secret,
    purpose: &str,
    (payload, good_for): (serde_json::Value, Duration),
) -> Result<(), StorageError> {
    let values = [
        secret.digest().into(),
        purpose.into(),
        payload.into(),
        good_for.as_seconds_f64().into(),
    ];
    tx.execute("make sign-in token", TOKEN_INSERT, values).await.map(|_| ())
}

#[derive(FromQueryResult)]
struct Payload {
    payload: serde_json::Value,
}

/// Of two that use it at one time, one finds it unused. Relies on the primary key.
pub const TOKEN_USE: &str = "
    update sign_in_token set used_at = now()
    where digest = $1 and purpose = $2 and payload ->> 'browser' = $3 and used_at is null and expires_at > now()
    returning payload";

/// What the token says, for the browser that it was made for. None: it was used, is over, or is another browser's.
pub async fn token_use(
    tx: &Tx,
    secret: &Secret,
    purpose: &str,
    browser: &Secret,
) -> Result<Option<serde_json::Value>, StorageError> {
    let values = [
        secret.digest().into(),
        purpose.into(),
        hex::encode(browser.digest()).into(),
    ];
    let found: Option<Payload> = tx.one("use sign-in token", TOKEN_USE, values).await?;
    Ok(found.map(|found| found.payload))
}
