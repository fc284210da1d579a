//! `/sign-in/{token}`: what a sign-in link opens. Looking at it uses nothing, since mail scanners look at links; the form, or a POST of
//! a program, uses it, and gives a key of the person's own. No other authentication: the token is the secret.

use api::members::SignedIn;
use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::{from_fn_with_state, map_request},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use contracts::event::Change;
use domain::SignInToken;
use runtime::http::{AccountLimits, Problem};
use storage::{Accounts, Tx, api_key::Person, outbox::Owned};
use tower::ServiceBuilder;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::{
    again::again,
    app::{App, database_now},
    body::Named,
    error::ApiError,
    keys::{NewKey, key_make},
    members::{
        changed,
        store::{Link, link_find, link_use},
    },
};

const PATH: &str = "/sign-in/{token}";
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// The name of the key that a link gives.
const KEY_NAME: &str = "sign-in link";

/// The page and its form. Answers hold secrets: they are not stored, and the page's address is told to nobody.
pub fn router(app: App) -> Router {
    let set = |name: HeaderName, value: &'static str| {
        SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
    };
    let headers = ServiceBuilder::new()
        .layer(set(header::CONTENT_SECURITY_POLICY, POLICY))
        .layer(set(header::CACHE_CONTROL, "no-store"))
        .layer(set(header::REFERRER_POLICY, "no-referrer"));
    Router::new()
        .route(PATH, get(look).post(redeem))
        .route_layer(from_fn_with_state(app.clone(), again))
        .route_layer(map_request(without_body))
        .layer(headers)
        .with_state(app)
}

/// Nothing is read of whoever has not shown a token, and a form without fields says nothing.
async fn without_body(request: Request) -> Request {
    request.map(|_| Body::empty())
}

async fn look(State(app): State<App>, token: Token) -> Result<Html<String>, Refused> {
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

async fn redeem(State(app): State<App>, token: Token) -> Result<Response, Refused> {
    let account = token.token.account();
    let used = async {
        let tx = app.callers.begin(&Accounts::one(account)).await?;
        let (signed_in, events) = sign_in(&app, &tx, &token.token).await?;
        app.commit(tx, events).await?;
        Ok(signed_in)
    };
    let signed_in = used.await.map_err(|error| token.refused(error))?;
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
    Ok(page("You are signed in", &shown).into_response())
}

/// Uses the link and makes the key, in one transaction.
async fn sign_in(app: &App, tx: &Tx, token: &SignInToken) -> Result<(SignedIn, Vec<Owned>), ApiError> {
    let now = database_now(tx).await?;
    let link = open(link_find(tx, token).await?, now)?;
    if !link_use(tx, token).await? {
        // Another request used it since it was read, replaced it, or removed the person.
        open(link_find(tx, token).await?, now)?;
        return Err(used().into());
    }
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
    Ok((answer, vec![made, signed_in]))
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
struct Token {
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

fn accepts_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/html"))
}

/// A refusal: a page for a person, a problem for a program.
struct Refused {
    error: ApiError,
    is_for_a_person: bool,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match &self.error {
            ApiError::Refused(problem) if self.is_for_a_person => {
                let (title, said) = match problem.code() {
                    "link_used" => (
                        "This link was used",
                        "It works once. Use the API key that it gave, or ask for another link.",
                    ),
                    _ => (
                        "This link is over",
                        "It has expired, or a newer one has replaced it. Ask whoever invited you for another one.",
                    ),
                };
                (StatusCode::GONE, page(title, &format!("<p>{said}</p>"))).into_response()
            }
            _ => self.error.into_response(),
        }
    }
}

fn page(title: &str, body: &str) -> Html<String> {
    Html(format!(
        "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }}
button {{ font: inherit; padding: .5rem 1rem; min-height: 44px }}
pre {{ padding: .75rem; border: 1px solid; white-space: pre-wrap; overflow-wrap: anywhere }}
</style>
<main>
<h1>{title}</h1>
{body}
</main>
"
    ))
}

/// A text as HTML.
fn text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// To the minute.
fn moment(at: time::OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    format!("{}, {:02}:{:02}", at.date(), at.hour(), at.minute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_markup() {
        assert_eq!(text("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
    }

    #[test]
    fn a_browser_wants_a_page_and_a_program_does_not() {
        let check = |accept: Option<&'static str>, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.extend(accept.map(|accept| (header::ACCEPT, HeaderValue::from_static(accept))));
            assert_eq!(accepts_html(&headers), expected, "{accept:?}");
        };
        check(Some("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"), true);
        check(Some("*/*"), false);
        check(Some("application/json"), false);
        check(None, false);
    }
}
