//! Browser sessions. A cookie stands for a login; it reaches what the login's members reach at the time of each request. One that a key opened
//! reaches no further than the key, and ends with it.

use axum::http::{HeaderMap, HeaderValue};
use domain::{AccountId, KeyId};
use storage::{Accounts, Tx};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::{
    cookie::{Cookie, Cookies},
    secret::Secret,
    store::{self, NewSession, Session},
};
use crate::{app::App, error::ApiError};

/// How a browser signs in.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub login: Uuid,
    pub method: &'a str,
    /// The key that it showed, and when that expires.
    pub key: Option<(&'a AccountId, &'a KeyId, Option<OffsetDateTime>)>,
}

fn days(days: runtime::settings::Days) -> Duration {
    Duration::try_from(days.duration()).unwrap_or(Duration::MAX)
}

/// The session of the request's cookie, if it lives.
pub async fn present(app: &App, headers: &HeaderMap) -> Result<Option<Session>, ApiError> {
    let cookies = Cookies::of(&app.base_url());
    let Some(secret) = cookies.and_then(|cookies| cookies.read(headers, Cookie::Session)) else {
        return Ok(None);
    };
    let tx = app.callers.begin(&Accounts::none()).await?;
    let found = store::session_find(&tx, &secret, days(app.sign_in.idle_days)).await?;
    tx.commit().await?;
    let Some((account, key)) = found.as_ref().and_then(Session::key) else {
        return Ok(found);
    };
    let tx = app.callers.begin(&Accounts::one(account)).await?;
    let lives = store::key_lives(&tx, (account, key)).await?;
    tx.commit().await?;
    Ok(found.filter(|_| lives))
}

/// Signs the browser in, in the caller's transaction, and out of the session that it had: each sign-in has a cookie of its own. Gives the
/// cookie; none where no cookie is safe.
pub async fn open(
    app: &App,
    tx: &Tx,
    headers: &HeaderMap,
    entry: Entry<'_>,
    now: OffsetDateTime,
) -> Result<Option<HeaderValue>, ApiError> {
    let Some(cookies) = Cookies::of(&app.base_url()) else {
        return Ok(None);
    };
    if let Some(before) = cookies.read(headers, Cookie::Session) {
        store::session_end(tx, &before).await?;
    }
    let secret = Secret::random()?;
    let longest = now + days(app.sign_in.session_days);
    let expires_at = entry
        .key
        .and_then(|(_, _, until)| until)
        .map_or(longest, |until| until.min(longest));
    let new = NewSession {
        secret: &secret,
        login: entry.login,
        method: entry.method,
        key: entry.key.map(|(account, key, _)| (account, key)),
        expires_at,
        idle: days(app.sign_in.idle_days),
    };
    let session = store::session_insert(tx, &new).await?;
    tracing::info!(login = %entry.login, %session, method = entry.method, "a browser signed in");
    let seconds = (expires_at - now).whole_seconds();
    Ok(Some(cookies.set(Cookie::Session, &secret, seconds)))
}
