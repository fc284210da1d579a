//! One OpenID provider: the code flow of OpenID Connect with PKCE, as the crate `openidconnect` has it. Requests go through `runtime::egress`: no
//! redirects, and public addresses over TLS only, unless the settings allow others; each address that the provider names is vetted, too.
//! Decides nothing about logins.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, TimeDelta, Utc};
use domain::{Email, error_chain};
use futures::{FutureExt, future::BoxFuture};
use openidconnect::{
    AsyncHttpClient, AuthType, AuthenticationFlow, AuthorizationCode, ClientId, ClientSecret, CsrfToken, HttpRequest,
    HttpResponse, Nonce, OAuth2TokenResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RequestTokenError,
    Scope, TokenResponse,
    core::{CoreClient, CoreClientAuthMethod, CoreJwsSigningAlgorithm, CoreProviderMetadata, CoreResponseType},
};
use parking_lot::Mutex;
use reqwest::Client;
use runtime::egress;
use secrecy::ExposeSecret;
use serde_json::Value;
use time::OffsetDateTime;

use super::settings::{OidcSettings, ProviderName, may_ask};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Of one answer of a provider.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// How old a provider's description may be when a browser is sent to it, and when one comes back: keys change.
const BEGIN_AGE_MAX: Duration = Duration::from_secs(600);
const FINISH_AGE_MAX: Duration = Duration::from_secs(60);
/// How far clocks may differ.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::seconds(60);

/// Signed with a key that only the provider has: nothing with the client's secret, and never nothing.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 10] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EcdsaP521Sha512,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// A provider of the settings.
#[derive(derive_more::Debug)]
pub struct Provider {
    name: ProviderName,
    settings: OidcSettings,
    http: Client,
    #[debug(skip)]
    described: Mutex<Option<(Instant, CoreProviderMetadata)>>,
}

/// What a browser takes along and brings back. Both follow from its cookie.
#[derive(Clone, Debug)]
pub struct Bound {
    pub nonce: String,
    pub verifier: String,
}

/// Whom a provider vouches for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub issuer: String,
    pub subject: String,
    /// If the provider has confirmed it.
    pub email: Option<Email>,
}

/// Why nobody signs in. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("the provider does not answer as it should: {0}")]
    Away(String),
    #[error("{0}")]
    Refused(String),
}

impl Failed {
    fn away(error: impl std::error::Error + 'static) -> Failed {
        Failed::Away(error_chain(&error))
    }

    fn refused(error: impl std::error::Error + 'static) -> Failed {
        Failed::Refused(error_chain(&error))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("the request failed")]
    Request(#[from] reqwest::Error),
    #[error("the address is not public or without TLS, and private_addresses is false")]
    Address,
    #[error("it answered with status {0}")]
    Status(u16),
    #[error("its answer is longer than {ANSWER_BYTES_MAX} bytes")]
    Long,
    #[error("its answer is none")]
    Answer(#[from] axum::http::Error),
}

impl Provider {
    pub fn new(name: &ProviderName, settings: &OidcSettings) -> Provider {
        let http = egress::client(settings.private_addresses)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT);
        Provider {
            name: name.clone(),
            settings: settings.clone(),
            http: http.build().expect("the TLS provider is installed at the start"),
            described: Mutex::default(),
        }
    }

    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// As people read it.
    pub fn shown(&self) -> &str {
        self.settings.name.as_deref().unwrap_or(self.name.as_str())
    }

    pub fn issuer(&self) -> &str {
        self.settings.issuer.as_str()
    }

    async fn fetch(&self, request: HttpRequest) -> Result<HttpResponse, FetchError> {
        let request = reqwest::Request::try_from(request)?;
        if !may_ask(request.url(), self.settings.private_addresses) {
            return Err(FetchError::Address);
        }
        let mut answer = self.http.execute(request).await?;
        if answer.status().is_server_error() {
            return Err(FetchError::Status(answer.status().as_u16()));
        }
        let mut bytes = Vec::new();
        while let Some(more) = answer.chunk().await? {
            if bytes.len() + more.len() > ANSWER_BYTES_MAX {
                return Err(FetchError::Long);
            }
            bytes.extend_from_slice(&more);
        }
        let mut response = axum::http::Response::builder().status(answer.status());
        for (name, value) in answer.headers() {
            response = response.header(name, value);
        }
        Ok(response.body(bytes)?)
    }

    /// What the provider says of itself, with its keys.
    async fn describe(&self, age_max: Duration) -> Result<CoreProviderMetadata, Failed> {
        let known = self.described.lock().clone();
        if let Some((at, described)) = known
            && at.elapsed() < age_max
        {
            return Ok(described);
        }
        let described = CoreProviderMetadata::discover_async(self.settings.issuer.clone(), self).await;
        let described = described.map_err(Failed::away)?;
        *self.described.lock() = Some((Instant::now(), described.clone()));
        Ok(described)
    }

    fn secret(&self) -> Option<ClientSecret> {
        let secret = self.settings.client_secret.as_ref();
        secret.map(|secret| ClientSecret::new(secret.expose_secret().to_owned()))
    }

    /// How the client shows its secret: as the standard has it, unless the provider takes only the other way.
    fn auth_type(described: &CoreProviderMetadata) -> AuthType {
        let taken = described.token_endpoint_auth_methods_supported();
        let takes = |way: CoreClientAuthMethod| taken.is_some_and(|taken| taken.contains(&way));
        match takes(CoreClientAuthMethod::ClientSecretPost) && !takes(CoreClientAuthMethod::ClientSecretBasic) {
            true => AuthType::RequestBody,
            false => AuthType::BasicAuth,
        }
    }

    /// Where a browser goes to sign in.
    pub async fn way_there(&self, back: &str, state: &str, bound: &Bound) -> Result<String, Failed> {
        let described = self.describe(BEGIN_AGE_MAX).await?;
        let client = CoreClient::from_provider_metadata(
            described,
            ClientId::new(self.settings.client_id.clone()),
            self.secret(),
        )
        .set_redirect_uri(RedirectUrl::new(back.to_owned()).map_err(Failed::away)?);
        let (state, nonce) = (state.to_owned(), bound.nonce.clone());
        let challenge = PkceCodeChallenge::from_code_verifier_sha256(&PkceCodeVerifier::new(bound.verifier.clone()));
        let (url, _, _) = client
            .authorize_url(
                AuthenticationFlow::<CoreResponseType>::AuthorizationCode,
                move || CsrfToken::new(state),
                move || Nonce::new(nonce),
            )
            .add_scope(Scope::new("email".to_owned()))
            .set_pkce_challenge(challenge)
            .url();
        Ok(url.into())
    }

    /// Whom the code that a browser brought back is for.
    pub async fn identity(
        &self,
        back: &str,
        code: &str,
        bound: &Bound,
        now: OffsetDateTime,
    ) -> Result<Identity, Failed> {
        let described = self.describe(FINISH_AGE_MAX).await?;
        let auth_type = Self::auth_type(&described);
        let endpoint = described.userinfo_endpoint().map(|endpoint| endpoint.url().clone());
        let client = CoreClient::from_provider_metadata(
            described,
            ClientId::new(self.settings.client_id.clone()),
            self.secret(),
        )
        .set_redirect_uri(RedirectUrl::new(back.to_owned()).map_err(Failed::away)?)
        .set_auth_type(auth_type);
        let tokens = client
            .exchange_code(AuthorizationCode::new(code.to_owned()))
            .map_err(Failed::away)?
            .set_pkce_verifier(PkceCodeVerifier::new(bound.verifier.clone()))
            .request_async(self)
            .await
            .map_err(|error| match error {
                RequestTokenError::Request(error) => Failed::away(error),
                // The other texts may repeat the code, the client's secret or a token.
                RequestTokenError::ServerResponse(answer) => {
                    let said: String = answer.error().to_string().chars().take(64).collect();
                    Failed::Refused(format!("the provider refused the code: {said}"))
                }
                RequestTokenError::Parse(..) | RequestTokenError::Other(_) => {
                    Failed::Refused("the provider's answer to the code cannot be read".to_owned())
                }
            })?;
        let token = tokens
            .id_token()
            .ok_or_else(|| Failed::Refused("there is no ID token".to_owned()))?;
        let now = DateTime::<Utc>::from_timestamp(now.unix_timestamp(), 0).unwrap_or_default();
        let verifier = client
            .id_token_verifier()
            .set_allowed_algs(ALGORITHMS)
            .set_time_fn(move || now - CLOCKS_DIFFER)
            .set_issue_time_verifier_fn(move |issued| match issued <= now + CLOCKS_DIFFER {
                true => Ok(()),
                false => Err("it is of the future".to_owned()),
            });
        let claims = token
            .claims(&verifier, &Nonce::new(bound.nonce.clone()))
            .map_err(Failed::refused)?;
        let subject = claims.subject().as_str().to_owned();
        let mut said = payload(&token.to_string()).unwrap_or_default();
        if said.get("email").is_none()
            && let Some(endpoint) = endpoint
        {
            let access = tokens.access_token().secret();
            said = self.user_info(endpoint.as_str(), access, &subject).await?;
        }
        Ok(Identity {
            issuer: self.issuer().to_owned(),
            subject,
            email: confirmed(&said),
        })
    }

    /// What the provider says of the person where the token says no e-mail address: the standard has it there (OpenID Connect Core, 5.4).
    /// Nothing, if it says it to nobody, signed, or of somebody else.
    async fn user_info(&self, endpoint: &str, access: &str, subject: &str) -> Result<Value, Failed> {
        let request = axum::http::Request::get(endpoint).header("authorization", format!("Bearer {access}"));
        let answer = self.fetch(request.body(Vec::new()).map_err(Failed::away)?).await;
        let answer = answer.map_err(Failed::away)?;
        let said: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let is_theirs = answer.status().is_success() && said.get("sub").and_then(Value::as_str) == Some(subject);
        Ok(if is_theirs { said } else { Value::Null })
    }
}

/// By itself, not by a closure: its futures are `Send` for every lifetime.
impl<'c> AsyncHttpClient<'c> for Provider {
    type Error = FetchError;
    type Future = BoxFuture<'c, Result<HttpResponse, FetchError>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        self.fetch(request).boxed()
    }
}

/// What a token says whose signature was checked.
fn payload(token: &str) -> Option<Value> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&payload).ok()
}

/// The e-mail address, if the provider has confirmed it: only the value `true` says so. The crate reads texts as well.
fn confirmed(claims: &Value) -> Option<Email> {
    let is_confirmed = claims.get("email_verified") == Some(&Value::Bool(true));
    let email = claims.get("email").and_then(Value::as_str).filter(|_| is_confirmed)?;
    Email::parse(email).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_counts_once_the_provider_has_confirmed_it() {
        let check = |claims: Value, expected: Option<&str>| {
            let token = format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims.to_string()));
            assert_eq!(
                confirmed(&payload(&token).unwrap()),
                expected.map(|email| Email::parse(email).unwrap()),
                "{claims}"
            );
        };
        check(
            json!({"email": "Ann@Example.com", "email_verified": true}),
            Some("ann@example.com"),
        );
        for said in [json!("true"), json!(1), json!(false), json!(null), json!([true])] {
            check(json!({"email": "ann@example.com", "email_verified": said}), None);
        }
        check(json!({"email": "ann@example.com"}), None);
        check(json!({"email": "ann", "email_verified": true}), None);
        check(json!({"email_verified": true}), None);
    }
}
