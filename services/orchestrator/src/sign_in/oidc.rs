//! `/sign-in/oidc/{provider}` and its callback: a browser goes to the provider with a state and comes back with a code. The state works once,
//! for ten minutes, in the browser whose cookie it was made for.
//!
//! Whom the provider vouches for signs in with their login. An identity that is not known yet makes a login for the members with its confirmed
//! e-mail address who have none. A member who has one is never bound by e-mail: its owner adds the identity while signed in (`add`).

use axum::{
    extract::{Path, State},
    http::{Extensions, HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse, Redirect, Response},
};
use contracts::event::Change;
use domain::{Actor, ActorKind};
use runtime::http::{AccountLimits, Problem};
use serde::{Deserialize, Serialize};
use storage::{Accounts, Tx, outbox::Owned};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::{
    cookie::{Cookie, Cookies},
    html::Refused,
    next_of,
    secret::Secret,
    session::{self, Entry},
    store,
};
use crate::{
    app::{App, database_now},
    body::Query,
    error::ApiError,
    members::{changed, store::Membership},
    oidc::provider::{Bound, Failed, Identity, Provider},
};

const PURPOSE: &str = "oidc";
const GOOD_FOR: Duration = Duration::minutes(10);

#[derive(Debug, Deserialize)]
pub struct Begin {
    next: Option<String>,
    /// Adds the identity to the login of this browser.
    add: Option<bool>,
}

/// What is kept of a browser that is on its way.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// The digest of its cookie.
    browser: String,
    provider: String,
    next: String,
    /// The login that gets the identity.
    add_to: Option<Uuid>,
}

#[derive(Debug, Deserialize)]
pub struct Callback {
    code: Option<String>,
    state: Option<String>,
    iss: Option<String>,
    error: Option<String>,
}

/// Without detail: what was wrong is in the log.
fn sign_in_failed() -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "sign_in_failed")
}

fn failed(provider: &Provider, failed: &Failed) -> ApiError {
    tracing::warn!(provider = provider.name(), error = %failed, "nobody signed in by this provider");
    match failed {
        Failed::Away(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "issuer_unavailable")
            .retry_after_s(10)
            .into(),
        Failed::Refused(_) => sign_in_failed().into(),
    }
}

/// The provider, and the form of cookies here.
fn parties<'a>(app: &'a App, provider: &str) -> Result<(&'a Provider, Cookies, String), Problem> {
    let base = app.base_url();
    let cookies = Cookies::of(&base).ok_or_else(Problem::not_found)?;
    let provider = app.oidc.iter().find(|known| known.name() == provider);
    let provider = provider.ok_or_else(Problem::not_found)?;
    Ok((
        provider,
        cookies,
        format!("{base}/sign-in/oidc/{}/callback", provider.name()),
    ))
}

/// What goes to the provider and has to come back follows from the browser's cookie and the state: nothing of it is stored.
fn bound(browser: &Secret, state: &Secret) -> Bound {
    Bound {
        nonce: browser.derive("nonce", state),
        verifier: browser.derive("pkce", state),
    }
}

pub async fn begin(
    State(app): State<App>,
    Path(provider): Path<String>,
    Query(query): Query<Begin>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let begun = async {
        AccountLimits::admit_guess(&extensions)?;
        let (provider, cookies, back) = parties(&app, &provider)?;
        let add_to = match query.add {
            Some(true) => {
                let present = session::present(&app, &headers)
                    .await?
                    .filter(|present| present.key().is_none());
                let Some(present) = present else {
                    return Ok(Redirect::to("/sign-in").into_response());
                };
                Some(present.login_id)
            }
            Some(false) | None => None,
        };
        let state = Secret::random()?;
        // One cookie for all of a browser's tabs.
        let browser = match cookies.read(&headers, Cookie::Flow) {
            Some(browser) => browser,
            None => Secret::random()?,
        };
        let way = provider
            .way_there(&back, state.expose(), &bound(&browser, &state))
            .await;
        let way = way.map_err(|error| failed(provider, &error))?;
        let kept = Kept {
            browser: hex::encode(browser.digest()),
            provider: provider.name().to_owned(),
            next: next_of(query.next.as_deref()).to_owned(),
            add_to,
        };
        let kept = serde_json::to_value(kept).expect("it has string keys");
        let tx = app.callers.begin(&Accounts::none()).await?;
        store::token_insert(&tx, &state, PURPOSE, (kept, GOOD_FOR)).await?;
        tx.commit().await?;
        let cookie = cookies.set(Cookie::Flow, &browser, GOOD_FOR.whole_seconds());
        Ok((AppendHeaders([(header::SET_COOKIE, cookie)]), Redirect::to(&way)).into_response())
    };
    begun.await.map_err(Refused::of(&headers))
}

pub async fn finish(
    State(app): State<App>,
    Path(provider): Path<String>,
    Query(query): Query<Callback>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let finished = async {
        AccountLimits::admit_guess(&extensions)?;
        let (provider, cookies, back) = parties(&app, &provider)?;
        let refuse = |why: &str| failed(provider, &Failed::Refused(why.to_owned()));
        let browser = cookies
            .read(&headers, Cookie::Flow)
            .ok_or_else(|| refuse("the browser has no cookie of it"))?;
        let state = query
            .state
            .as_deref()
            .and_then(Secret::parse)
            .ok_or_else(|| refuse("there is no state"))?;
        // Used from here on, whatever becomes of it.
        let tx = app.callers.begin(&Accounts::none()).await?;
        let kept = store::token_use(&tx, &state, PURPOSE, &browser).await?;
        let now = database_now(&tx).await?;
        tx.commit().await?;
        let kept: Option<Kept> = kept.and_then(|kept| serde_json::from_value(kept).ok());
        let kept = kept.filter(|kept| kept.provider == provider.name());
        let kept = kept.ok_or_else(|| refuse("the state was used, is over, or is another browser's or provider's"))?;
        if query.iss.as_deref().is_some_and(|issuer| issuer != provider.issuer()) {
            return Err(refuse("another issuer answered"));
        }
        if query.error.is_some() {
            return Err(refuse("the provider refused"));
        }
        let code = query.code.as_deref().ok_or_else(|| refuse("there is no code"))?;
        let identity = provider.identity(&back, code, &bound(&browser, &state), now).await;
        let identity = identity.map_err(|error| failed(provider, &error))?;
        let cookie = enter(&app, &headers, provider, &identity, kept.add_to).await?;
        let cookie = AppendHeaders([(header::SET_COOKIE, cookie)]);
        Ok((cookie, Redirect::to(next_of(Some(&kept.next)))).into_response())
    };
    finished.await.map_err(Refused::of(&headers))
}

/// Signs the browser in with the identity's login. Gives its cookie.
async fn enter(
    app: &App,
    headers: &HeaderMap,
    provider: &Provider,
    identity: &Identity,
    add_to: Option<Uuid>,
) -> Result<axum::http::HeaderValue, ApiError> {
    let method = format!("oidc:{}", provider.name());
    let present = session::present(app, headers)
        .await?
        .filter(|present| present.key().is_none());
    // Signed out, or another person's browser by now.
    if add_to.is_some() && present.map(|present| present.login_id) != add_to {
        return Err(sign_in_failed().into());
    }
    // Whom to bind is read first: a transaction declares its accounts when it begins.
    let tx = app.callers.begin(&Accounts::none()).await?;
    let known = store::identity_find(&tx, &identity.issuer, &identity.subject).await?;
    let has_account = match known.or(add_to) {
        Some(login) => !store::accounts_of(&tx, login).await?.is_empty(),
        None => false,
    };
    let invited = match &identity.email {
        Some(email) if !has_account && add_to.is_none() => store::members_by_email(&tx, email).await?,
        Some(_) | None => Vec::new(),
    };
    tx.commit().await?;
    if add_to.is_some() && known.is_some() && known != add_to {
        return Err(Problem::conflict("identity_taken", "another login has this identity").into());
    }
    let login = known.or(add_to).unwrap_or_else(Uuid::now_v7);
    let tx = app
        .callers
        .begin(&Accounts::many(invited.iter().map(|member| &member.account_id)))
        .await?;
    let now = database_now(&tx).await?;
    if known.is_none() && !store::identity_insert(&tx, &identity.issuer, &identity.subject, login).await? {
        // Another request made it since: signing in again finds it.
        return Err(sign_in_failed().into());
    }
    let events = bind(app, &tx, identity, (&invited, login), now).await?;
    if !has_account && events.is_empty() {
        tracing::warn!(provider = provider.name(), "refused: the identity is no member's");
        let detail = "no account has a member with this identity, or with its confirmed e-mail address and no login";
        return Err(Problem::new(StatusCode::FORBIDDEN, "no_membership")
            .detail(detail)
            .into());
    }
    let entry = Entry {
        login,
        method: &method,
        key: None,
    };
    let cookie = session::open(app, &tx, headers, entry, now)
        .await?
        .ok_or_else(Problem::not_found)?;
    app.commit(tx, events).await?;
    Ok(cookie)
}

/// Binds members who have never signed in to the login; gives their events.
async fn bind(
    app: &App,
    tx: &Tx,
    identity: &Identity,
    (invited, login): (&[Membership], Uuid),
    now: OffsetDateTime,
) -> Result<Vec<Owned>, ApiError> {
    let mut events = Vec::new();
    let Some(email) = &identity.email else {
        return Ok(events);
    };
    for member in invited {
        if store::member_bind(tx, member, email, login).await? {
            tracing::info!(account = %member.account_id, user = %member.user_id, %login, "bound a member to a login by a confirmed e-mail address");
            let by = Actor {
                kind: ActorKind::User,
                id: member.user_id.to_string(),
                name: member.user_id.to_string(),
                via: None,
            };
            events.push(app.event(&member.account_id, now, changed(&member.user_id, Change::Changed, by)));
        }
    }
    Ok(events)
}
