//! A provider of OpenID Connect: a program that speaks the code flow over HTTP, and says of its one person whatever it is told to say.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use openidconnect::{
    JsonWebKeyId, PrivateSigningKey,
    core::{CoreEdDsaPrivateSigningKey, CoreJwsSigningAlgorithm},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

/// Of tests alone.
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIMYPogfISMd6jhFphXAEDMmP+7J64DZU9V5nzY/ZviH9
-----END PRIVATE KEY-----
";
/// The code that it gives to everybody.
pub const CODE: &str = "the-code";

#[derive(Debug)]
pub struct OpenIdProvider {
    pub issuer: String,
    said: Mutex<Said>,
}

#[derive(Clone, Default, Debug)]
struct Said {
    /// Beside, or instead of, what a token has.
    claims: Value,
    /// What it says where it says more of a person than in the token.
    user_info: Value,
    /// In the header of its token.
    alg: Option<String>,
    is_away: bool,
    /// Of the browser's request.
    nonce: String,
    challenge: String,
}

impl OpenIdProvider {
    pub async fn start() -> Arc<OpenIdProvider> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let issuer = format!("http://{}", listener.local_addr().expect("an address"));
        let said = Mutex::default();
        let provider = Arc::new(OpenIdProvider { issuer, said });
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(describe))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .route("/me", get(user_info))
            .with_state(Arc::clone(&provider));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        provider
    }

    /// What its next tokens say.
    pub fn says(&self, claims: Value) {
        let mut said = self.said.lock();
        (said.claims, said.alg) = (claims, None);
    }

    /// What it says of its person to whoever shows the access token.
    pub fn says_apart(&self, user_info: Value) {
        self.said.lock().user_info = user_info;
    }

    /// By which algorithm they claim to be signed.
    pub fn signs_by(&self, alg: &str) {
        self.said.lock().alg = Some(alg.to_owned());
    }

    pub fn is_away(&self) {
        self.said.lock().is_away = true;
    }

    /// A browser was sent here: the parameters of its request.
    pub fn visited(&self, location: &str) -> HashMap<String, String> {
        assert!(
            location.starts_with(&format!("{}/authorize?", self.issuer)),
            "{location}"
        );
        let url = reqwest::Url::parse(location).expect("a URL");
        let query: HashMap<String, String> = url.query_pairs().into_owned().collect();
        let mut said = self.said.lock();
        (said.nonce, said.challenge) = (query["nonce"].clone(), query["code_challenge"].clone());
        query
    }

    /// Signed, whatever it says.
    fn token(&self) -> String {
        let said = self.said.lock().clone();
        let now = OffsetDateTime::now_utc().unix_timestamp();
        let mut claims = json!({"iss": self.issuer, "aud": "signalbox", "sub": "s-1", "iat": now, "exp": now + 60, "nonce": said.nonce});
        for (name, value) in said.claims.as_object().into_iter().flatten() {
            claims[name] = value.clone();
        }
        let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": said.alg.as_deref().unwrap_or("EdDSA"), "kid": "k"});
        let signed = format!("{}.{}", part(header), part(claims));
        let signature = signing_key().sign(&CoreJwsSigningAlgorithm::EdDsa, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.expect("a signature")))
    }
}

fn signing_key() -> CoreEdDsaPrivateSigningKey {
    CoreEdDsaPrivateSigningKey::from_ed25519_pem(KEY, Some(JsonWebKeyId::new("k".to_owned()))).expect("a key")
}

async fn describe(State(provider): State<Arc<OpenIdProvider>>) -> Response {
    if provider.said.lock().is_away {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let issuer = &provider.issuer;
    Json(json!({"issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"), "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"), "userinfo_endpoint": format!("{issuer}/me"), "response_types_supported": ["code"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["EdDSA"]}))
    .into_response()
}

async fn keys() -> Json<Value> {
    Json(json!({"keys": [signing_key().as_verification_key()]}))
}

async fn user_info(State(provider): State<Arc<OpenIdProvider>>, headers: HeaderMap) -> Response {
    match headers.get(header::AUTHORIZATION).map(|shown| shown.as_bytes()) {
        Some(b"Bearer a") => Json(provider.said.lock().user_info.clone()).into_response(),
        Some(_) | None => StatusCode::UNAUTHORIZED.into_response(),
    }
}

/// Takes the code of the browser that was sent here last, and no other.
async fn token(State(provider): State<Arc<OpenIdProvider>>, headers: HeaderMap, form: String) -> Response {
    let form = reqwest::Url::parse(&format!("http://h/?{form}")).expect("a form");
    let form: HashMap<_, _> = form.query_pairs().into_owned().collect();
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
    let shown = headers
        .get(header::AUTHORIZATION)
        .map(|shown| shown.as_bytes().starts_with(b"Basic "));
    if challenge != provider.said.lock().challenge || form["code"] != CODE || shown != Some(true) {
        return (StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_grant"}))).into_response();
    }
    Json(json!({"access_token": "a", "token_type": "Bearer", "id_token": provider.token()})).into_response()
}
