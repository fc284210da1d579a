//! `/sign-in/{token}`: what a sign-in link opens. Looking at it uses nothing, since mail scanners look at links; the form, or a POST of
//! a program, uses it, and gives a key of the person's own. A form signs the browser in as well. No other authentication: the token is the
//! secret.

use api::members::SignedIn;
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, Html, IntoResponse, Response},
};
use contracts::event::Change;
use domain::SignInToken;
use runtime::http::{AccountLimits, Problem};
use storage::{Accounts, Tx, api_key::Person, outbox::Owned};
use uuid::Uuid;

use super::{
    html::{Refused, accepts_html, page, text},
    session::{self, Entry},
};
use crate::{
    app::{App, database_now},
    body::Named,
    error::ApiError,
    keys::{NewKey, key_make},
    members::{
        changed,
        store::{Link, link_find, link_use},
    },
};

/// The name of the key that a link gives.
const KEY_NAME: &str = "sign-in link";

pub async fn look(State(app): State<App>, token: Token) -> Result<Html<String>, Refused> {
    let seen = async {
        let tx = app.callers.begin(&Accounts::one(token.token.account())).await?;
        let link = link_find(&tx, &token.token).await?;
        let now = database_now(&tx).await?;
        tx.commit().await?;
        open(link, now)
    };
    let link = seen.await.map_err(|error| token.refused(error))?;
    let form = format!(
        "<p>This link is for <b>{name}</b> (<code>{user}</code>), {role} of the account <b>{account}</b>.</p>
         <form method=\"post\"><button>Sign in and show my API key</button></form>
         <p>The link works once, until {until} UTC.</p>",
        name = text(&link.name),
        user = text(link.user_id.as_str()),
        role = link.role,
        account = text(token.token.account().as_str()),
        until = text(&moment(link.expires_at)),
    );
    Ok(page("Sign in to Signalbox", &form))
}

pub async fn redeem(State(app): State<App>, headers: HeaderMap, token: Token) -> Result<Response, Refused> {
    let account = token.token.account();
    let used = async {
        // Of a browser that is signed in already, the account comes to what it is signed in with. A key opens no further account.
        let present = session::present(&app, &headers)
            .await?
            .filter(|present| present.key().is_none());
        let tx = app.callers.begin(&Accounts::one(account)).await?;
        let present = present.map(|present| present.login_id);
        let (signed_in, login, events) = sign_in(&app, &tx, &token.token, present).await?;
        let cookie = if token.is_for_a_person {
            let entry = Entry {
                login,
                method: "link",
                key: None,
            };
            let now = database_now(&tx).await?;
            session::open(&app, &tx, &headers, entry, now).await?
        } else {
            None
        };
        app.commit(tx, events).await?;
        Ok((signed_in, cookie))
    };
    let (signed_in, cookie) = used.await.map_err(|error| token.refused(error))?;
    tracing::info!(%account, user = signed_in.user_id, "signed in by a link");
    if !token.is_for_a_person {
        return Ok((StatusCode::CREATED, Json(signed_in)).into_response());
    }
    let shown = format!(
        "<p>You are <b>{name}</b> (<code>{user}</code>) of the account <b>{account}</b>. This is your API key. It is shown here and
         nowhere else: copy it now.</p>
         <pre>{key}</pre>
         <p>It works like this:</p>
         <pre>curl -H \"Authorization: Bearer $SIGNALBOX_KEY\" {base}/api/me</pre>
         <p>If you lose it, revoke it under <code>/api/me/keys</code>, or ask an admin to. If somebody else has it, revoke there every key that
         you do not know.</p>",
        name = text(&signed_in.name),
        user = text(&signed_in.user_id),
        account = text(account.as_str()),
        key = text(signed_in.key.key.as_deref().unwrap_or_default()),
        base = text(&app.base_url()),
    );
    let cookie = AppendHeaders(cookie.map(|cookie| (header::SET_COOKIE, cookie)));
    Ok((cookie, page("You are signed in", &shown)).into_response())
}

/// Uses the link and makes the key, in one transaction.
async fn sign_in(
    app: &App,
    tx: &Tx,
    token: &SignInToken,
    present: Option<Uuid>,
) -> Result<(SignedIn, Uuid, Vec<Owned>), ApiError> {
    let now = database_now(tx).await?;
    let link = open(link_find(tx, token).await?, now)?;
    let Some(login) = link_use(tx, token, present).await? else {
        // Another request used it since it was read, replaced it, or removed the person.
        open(link_find(tx, token).await?, now)?;
        return Err(used().into());
    };
    let person = Person {
        id: link.user_id.clone(),
        name: link.name.clone(),
    };
    let by = person.actor();
    let new = NewKey {
        name: KEY_NAME,
        role: link.role.key_role(),
        expires_at: None,
        agent: None,
        user: Some(&link.user_id),
        by: by.clone(),
    };
    let account = token.account();
    let (key, made) = key_make(app, tx, account, new, now).await?;
    let signed_in = app.event(account, now, changed(&link.user_id, Change::Changed, by));
    let answer = SignedIn {
        account: account.to_string(),
        user_id: link.user_id.to_string(),
        name: link.name,
        key,
    };
    Ok((answer, login, vec![made, signed_in]))
}

/// The link, if it may be used.
fn open(link: Option<Link>, now: time::OffsetDateTime) -> Result<Link, ApiError> {
    match link {
        Some(link) if link.used_at.is_some() => Err(used().into()),
        Some(link) if link.expires_at > now => Ok(link),
        Some(_) | None => Err(over().into()),
    }
}

fn used() -> Problem {
    let detail = "this link was used, and works once: use the key that it gave, or ask for another link";
    Problem::new(StatusCode::GONE, "link_used").detail(detail)
}

/// The same for a link that has expired, one that a newer one has replaced, and one that never was.
fn over() -> Problem {
    let detail = "this link has expired, or a newer one has replaced it: ask whoever invited you for another one";
    Problem::new(StatusCode::GONE, "link_expired").detail(detail)
}

/// The token of the path, and whether a person looks at the answer.
pub struct Token {
    token: SignInToken,
    is_for_a_person: bool,
}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Token {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, state: &S) -> Result<Self, Refused> {
        let is_for_a_person = accepts_html(&parts.headers);
        AccountLimits::admit_guess(&parts.extensions).map_err(|problem| Refused {
            error: problem.into(),
            is_for_a_person: false,
        })?;
        let token = Named::from_request_parts(parts, state).await;
        let Named(token) = token.map_err(|_| Refused {
            error: over().into(),
            is_for_a_person,
        })?;
        Ok(Token { token, is_for_a_person })
    }
}

impl Token {
    fn refused(&self, error: ApiError) -> Refused {
        if matches!(error, ApiError::Refused(_)) {
            tracing::warn!(account = %self.token.account(), %error, "refused a sign-in link");
        }
        Refused {
            error,
            is_for_a_person: self.is_for_a_person,
        }
    }
}

/// To the minute.
fn moment(at: time::OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    format!("{}, {:02}:{:02}", at.date(), at.hour(), at.minute())
}
