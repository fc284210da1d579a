//! `/sign-in`, `/sign-in/key`, `/sign-in/link` and `/sign-out`: a browser signs in with what it has or asks for a link, sees who it is, and signs out.

use axum::{
    Json,
    body::Bytes,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{AppendHeaders, Html, IntoResponse, Redirect, Response},
};
use domain::{ApiKey, Email};
use runtime::http::{AccountLimits, Problem};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use storage::{Accounts, api_key::api_key_holder};

use super::{
    cookie::{Cookie, Cookies},
    html::{Refused, page, text},
    next_of,
    session::{self, Entry},
    store,
};
use crate::{
    app::{App, database_now},
    body,
    error::ApiError,
    keys::store::key_hold,
    outbound::store::sign_in_insert,
};

/// The fields of a form, or of JSON.
pub struct Fields<T> {
    fields: T,
    is_form: bool,
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Fields<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_form = request
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-www-form-urlencoded"));
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|_| Problem::invalid("the body could not be read"))?;
        if !is_form {
            let fields = body::parse(&bytes)?;
            return Ok(Fields { fields, is_form });
        }
        let refused = || Problem::new(StatusCode::BAD_REQUEST, "invalid_field").detail("not the fields of this form");
        let form = std::str::from_utf8(&bytes).map_err(|_| refused())?;
        let form: Uri = format!("/?{form}").parse().map_err(|_| refused())?;
        let fields = axum::extract::Query::try_from_uri(&form).map_err(|_| refused())?.0;
        Ok(Fields { fields, is_form })
    }
}

pub async fn home() -> Redirect {
    Redirect::to("/sign-in")
}

/// How one signs in here.
#[derive(Debug, Serialize)]
pub struct Methods {
    /// A browser with a key of its person.
    key: bool,
    /// A link by e-mail, at `/sign-in/link`.
    email: bool,
    oidc: Vec<Method>,
}

#[derive(Debug, Serialize)]
struct Method {
    provider: String,
    name: String,
    url: String,
}

/// Providers by which browsers sign in here; none where no cookie is safe.
fn methods_of(app: &App) -> Methods {
    let base = app.base_url();
    let key = Cookies::of(&base).is_some();
    let oidc = app.oidc.iter().filter(|_| key).map(|provider| Method {
        provider: provider.name().to_owned(),
        name: provider.shown().to_owned(),
        url: format!("{base}/sign-in/oidc/{}", provider.name()),
    });
    Methods {
        key,
        email: app.emails_max().is_some(),
        oidc: oidc.collect(),
    }
}

pub async fn methods(State(app): State<App>) -> Json<Methods> {
    Json(methods_of(&app))
}

pub async fn index(State(app): State<App>, headers: HeaderMap) -> Result<Html<String>, Refused> {
    let shown = async {
        let Some(present) = session::present(&app, &headers).await? else {
            return Ok(ways_in(&methods_of(&app)));
        };
        let tx = app.callers.begin(&Accounts::none()).await?;
        let accounts = store::accounts_of(&tx, present.login_id).await?;
        tx.commit().await?;
        let of_key = present.key().map(|(account, _)| account);
        let accounts: String = accounts
            .iter()
            .filter(|member| of_key.is_none_or(|account| *account == member.account_id))
            .map(|member| {
                format!(
                    "<li><b>{}</b>: <code>{}</code></li>",
                    text(member.account_id.as_str()),
                    text(member.user_id.as_str())
                )
            })
            .collect();
        let body = format!(
            "<ul>{accounts}</ul>
             <form method=\"post\" action=\"/sign-out\"><button>Sign out</button>
             <button name=\"everywhere\" value=\"true\">Sign out of every browser</button></form>"
        );
        Ok(page("You are signed in", &body))
    };
    shown.await.map_err(Refused::of(&headers))
}

fn ways_in(methods: &Methods) -> Html<String> {
    let links = methods.oidc.iter().map(|method| {
        format!(
            "<p><a href=\"/sign-in/oidc/{}\">Sign in with {}</a></p>",
            text(&method.provider),
            text(&method.name)
        )
    });
    let key = "<form method=\"post\" action=\"/sign-in/key\"><p><label>A key of your own: \
               <input type=\"password\" name=\"key\" autocomplete=\"off\" required></label> <button>Sign in</button></p></form>";
    let email = "<form method=\"post\" action=\"/sign-in/link\"><p><label>Your e-mail address: \
                 <input type=\"email\" name=\"email\" autocomplete=\"email\" required></label> <button>Send me a link</button></p></form>";
    let forms = [(methods.email, email), (methods.key, key)].map(|(is_way, form)| is_way.then(|| form.to_owned()));
    let body: String = links.chain(forms.into_iter().flatten()).collect();
    page(
        "Sign in to Signalbox",
        &format!("<p>Open the link that you were sent.</p>{body}"),
    )
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyForm {
    key: String,
    next: Option<String>,
}

/// Who signed in.
#[derive(Debug, Serialize)]
struct SignedInBy {
    account: String,
    user_id: String,
    name: String,
}

/// A member's key becomes a browser session, which reaches what the key does and ends with it.
pub async fn by_key(State(app): State<App>, request: Request) -> Result<Response, Refused> {
    let (parts, body) = request.into_parts();
    let (headers, extensions) = (parts.headers.clone(), parts.extensions.clone());
    let used = async {
        let Fields { fields, is_form } = Fields::<KeyForm>::from_request(Request::from_parts(parts, body), &()).await?;
        let refuse = || {
            app.meters.refused("unauthorized");
            tracing::warn!("refused: no valid key was shown to sign in with");
            ApiError::from(Problem::unauthorized())
        };
        let key = ApiKey::parse(fields.key.trim()).map_err(|_| refuse())?;
        let account = key.account();
        let look_up = async {
            let tx = app.callers.begin(&Accounts::one(account)).await?;
            let holder = api_key_holder(&tx, &key).await?;
            tx.commit().await?;
            Ok::<_, ApiError>(holder)
        };
        let (holder, _under_way) = AccountLimits::admit(&extensions, &key, look_up)
            .await?
            .ok_or_else(refuse)?;
        let Some(person) = holder.person else {
            let detail = "this is no person's key: ask for a sign-in link";
            return Err(Problem::new(StatusCode::FORBIDDEN, "not_a_person")
                .detail(detail)
                .into());
        };
        let tx = app.callers.begin(&Accounts::one(account)).await?;
        let now = database_now(&tx).await?;
        // Revoked or removed since.
        let held = key_hold(&tx, account, key.id().as_str()).await?.ok_or_else(refuse)?;
        let login = store::login_of(&tx, account, &person.id).await?.ok_or_else(refuse)?;
        let until = held.expires_at.map(|at| at.0);
        let entry = Entry {
            login,
            method: "key",
            key: Some((account, key.id(), until)),
        };
        let cookie = session::open(&app, &tx, &headers, entry, now)
            .await?
            .ok_or_else(Problem::not_found)?;
        tx.commit().await?;
        let cookie = AppendHeaders([(header::SET_COOKIE, cookie)]);
        Ok(if is_form {
            (cookie, Redirect::to(next_of(fields.next.as_deref()))).into_response()
        } else {
            let signed_in = SignedInBy {
                account: account.to_string(),
                user_id: person.id.to_string(),
                name: person.name,
            };
            (cookie, Json(signed_in)).into_response()
        })
    };
    used.await.map_err(Refused::of(&headers))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkForm {
    email: Email,
}

/// Asks for sign-in links by e-mail. Who has the address is looked up when the e-mail is sent, so neither the answer nor its time says whether
/// anybody has it; nor does either say that it was asked for too often.
pub async fn by_email(State(app): State<App>, request: Request) -> Result<Response, Refused> {
    let headers = request.headers().clone();
    let asked = async {
        AccountLimits::admit_guess(request.extensions())?;
        let Some(pending_max) = app.emails_max() else {
            let detail =
                "no e-mail is sent here: ask whoever runs Signalbox, or an admin of your account, for a sign-in link";
            return Err(Problem::not_found().detail(detail).into());
        };
        let Fields { fields, is_form } = Fields::<LinkForm>::from_request(request, &()).await?;
        let tx = app.callers.begin(&Accounts::operator()).await?;
        let is_new = sign_in_insert(&tx, &fields.email, pending_max).await?;
        tx.commit().await?;
        if !is_new {
            tracing::info!("too many sign-in links were asked for; no e-mail is sent");
        }
        Ok::<_, ApiError>(is_form)
    };
    let is_form = asked.await.map_err(Refused::of(&headers))?;
    let said =
        "<p>If somebody here has this address, an e-mail with a sign-in link is on its way. Look at your mail.</p>";
    Ok(match is_form {
        true => (StatusCode::ACCEPTED, page("Look at your mail", said)).into_response(),
        false => StatusCode::ACCEPTED.into_response(),
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignOut {
    everywhere: Option<bool>,
}

/// Ends the browser's session; with `everywhere`, all of its login. One that a key opened ends itself alone.
pub async fn sign_out(
    State(app): State<App>,
    headers: HeaderMap,
    fields: Fields<SignOut>,
) -> Result<Response, Refused> {
    let ended = async {
        let cookies = Cookies::of(&app.base_url()).ok_or_else(Problem::not_found)?;
        let present = session::present(&app, &headers).await?;
        let tx = app.callers.begin(&Accounts::none()).await?;
        if let Some(secret) = cookies.read(&headers, Cookie::Session) {
            store::session_end(&tx, &secret).await?;
        }
        let everywhere = fields.fields.everywhere.unwrap_or(false);
        if let Some(present) = &present {
            if everywhere && present.key().is_none() {
                store::sessions_end(&tx, present.login_id, None).await?;
            }
            tracing::info!(login = %present.login_id, session = %present.id, everywhere, "a browser signed out");
        }
        tx.commit().await?;
        Ok(cookies.clear(Cookie::Session))
    };
    let cookie = ended.await.map_err(Refused::of(&headers))?;
    let cookie = AppendHeaders([(header::SET_COOKIE, cookie)]);
    Ok(match fields.is_form {
        true => (cookie, Redirect::to("/sign-in")).into_response(),
        false => (cookie, StatusCode::NO_CONTENT).into_response(),
    })
}
