//! Signing in by a provider of OpenID Connect: a program that speaks the protocol over HTTP, and what it must not get away with.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, Method, StatusCode, header},
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

use crate::{
    members::member,
    sign_in::{cookie_of, seen},
    world::{Answer, Tenant, World},
};

/// Of this test alone.
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIMYPogfISMd6jhFphXAEDMmP+7J64DZU9V5nzY/ZviH9
-----END PRIVATE KEY-----
";

/// A provider, and what it says next.
struct Provider {
    issuer: String,
    said: Mutex<Said>,
}

#[derive(Clone, Default)]
struct Said {
    /// Beside or instead of what a token has.
    claims: Value,
    /// The header of its token.
    alg: Option<&'static str>,
    /// Of the browser's request.
    nonce: String,
    challenge: String,
    is_away: bool,
}

impl Provider {
    async fn start() -> Arc<Provider> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let provider = Arc::new(Provider { issuer, said: Mutex::default() });
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(describe))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .with_state(Arc::clone(&provider));
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        provider
    }

    fn says(&self, claims: Value) {
        *self.said.lock() = Said { claims, ..Said::default() };
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
        let signed = format!("{}.{}", part(json!({"alg": said.alg.unwrap_or("EdDSA"), "kid": "k"})), part(claims));
        let signature = signing_key().sign(&CoreJwsSigningAlgorithm::EdDsa, signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn signing_key() -> CoreEdDsaPrivateSigningKey {
    CoreEdDsaPrivateSigningKey::from_ed25519_pem(KEY, Some(JsonWebKeyId::new("k".to_owned()))).unwrap()
}

async fn describe(State(provider): State<Arc<Provider>>) -> Response {
    if provider.said.lock().is_away {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let issuer = &provider.issuer;
    Json(json!({"issuer": issuer, "authorization_endpoint": format!("{issuer}/authorize"), "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"), "response_types_supported": ["code"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["EdDSA"]}))
    .into_response()
}

async fn keys() -> Json<Value> {
    Json(json!({"keys": [signing_key().as_verification_key()]}))
}

/// Takes the code of the browser that was sent here, and no other.
async fn token(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    form: String,
) -> Response {
    let form = reqwest::Url::parse(&format!("http://h/?{form}")).unwrap();
    let form: HashMap<_, _> = form.query_pairs().into_owned().collect();
    let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
    let is_client = headers[header::AUTHORIZATION].to_str().unwrap().starts_with("Basic ");
    if challenge != provider.said.lock().challenge || form["code"] != "the-code" || !is_client {
        return (StatusCode::BAD_REQUEST, Json(json!({"error": "invalid_grant"}))).into_response();
    }
    Json(json!({"access_token": "a", "token_type": "Bearer", "id_token": provider.token()})).into_response()
}

struct Setting {
    world: World,
    acme: Tenant,
    provider: Arc<Provider>,
}

async fn setting() -> Setting {
    testkit::install_tls_provider();
    let provider = Provider::start().await;
    let settings = json!({"oidc": {"corp": {"issuer": provider.issuer, "client_id": "signalbox", "client_secret": "secret",
        "name": "The <Corp>", "private_addresses": true}}});
    let world = World::with_sign_in(|_| {}, serde_json::from_value(settings).unwrap()).await;
    let acme = world.tenant("acme").await;
    Setting { world, acme, provider }
}

/// A browser on its way: its cookie, and the state that the provider gives back.
struct Underway {
    cookie: String,
    state: String,
}

impl Setting {
    async fn invite(&self, tenant: &Tenant, user: &str) {
        let new = json!({"user_id": user, "name": user, "email": "ann@example.com", "role": "member", "invite": true});
        assert_eq!(self.world.post(&tenant.admin, &tenant.path("/members"), new).await.status, 201);
    }

    async fn begin(&self, query: &str, cookie: &str) -> Underway {
        let path = format!("/sign-in/oidc/corp{query}");
        let begun = self.world.call(Method::GET, &path).header("cookie", cookie).send().await;
        assert_eq!(begun.status, 303, "{begun:?}");
        let location = begun.headers[header::LOCATION].to_str().unwrap();
        assert!(location.starts_with(&format!("{}/authorize?", self.provider.issuer)), "{location}");
        let url = reqwest::Url::parse(location).unwrap();
        let query: HashMap<_, _> = url.query_pairs().into_owned().collect();
        assert_eq!((query["response_type"].as_str(), query["code_challenge_method"].as_str()), ("code", "S256"));
        let back = "http://127.0.0.1:8080/sign-in/oidc/corp/callback";
        assert_eq!((query["scope"].as_str(), query["redirect_uri"].as_str()), ("openid email", back));
        let mut said = self.provider.said.lock();
        (said.nonce, said.challenge) = (query["nonce"].clone(), query["code_challenge"].clone());
        Underway { cookie: cookie_of(&begun), state: query["state"].clone() }
    }

    async fn finish(&self, cookie: &str, query: &str) -> Answer {
        let path = format!("/sign-in/oidc/corp/callback?{query}");
        self.world.call(Method::GET, &path).header("cookie", cookie).send().await
    }

    /// There and back.
    async fn sign_in(&self) -> Answer {
        let way = self.begin("", "").await;
        self.finish(&way.cookie, &format!("code=the-code&state={}", way.state)).await
    }
}

fn confirmed() -> Value {
    json!({"email": "Ann@example.com", "email_verified": true})
}

#[tokio::test]
async fn an_invited_person_signs_in_by_a_confirmed_address_and_then_by_the_identity() {
    let setting = setting().await;
    let world = &setting.world;
    let beta = world.tenant("beta").await;
    setting.invite(&setting.acme, "ann").await;
    setting.invite(&beta, "ann-b").await;
    setting.provider.says(confirmed());
    let way = setting.begin("?next=/c/acme", "").await;
    let query = format!("code=the-code&state={}&iss={}", way.state, setting.provider.issuer);
    let back = setting.finish(&way.cookie, &query).await;
    assert_eq!((back.status.as_u16(), back.headers[header::LOCATION].to_str().unwrap()), (303, "/c/acme"), "{back:?}");
    let page = seen(world, &cookie_of(&back)).await;
    assert!(page.contains("<b>acme</b>: <code>ann</code>") && page.contains("<b>beta</b>: <code>ann-b</code>"), "{page}");
    // Once.
    setting.finish(&way.cookie, &query).await.is_problem(400, "sign_in_failed", "");

    // Known from now on, whatever address it has.
    setting.provider.says(json!({"email": "other@example.com", "email_verified": false}));
    assert!(seen(world, &cookie_of(&setting.sign_in().await)).await.contains("acme"));
    // Somebody else with the address binds nobody again.
    setting.provider.says(json!({"sub": "s-2", "email": "ann@example.com", "email_verified": true}));
    setting.sign_in().await.is_problem(403, "no_membership", "");
    // A person who is in no account any more signs in nowhere.
    for (tenant, user) in [(&setting.acme, "ann"), (&beta, "ann-b")] {
        assert_eq!(world.delete(&tenant.admin, &tenant.path(&format!("/members/{user}"))).await.status, 204);
    }
    setting.provider.says(json!({}));
    setting.sign_in().await.is_problem(403, "no_membership", "");
    assert_eq!(world.test.count("select count(*) from login_identity").await, 1);
}

#[tokio::test]
async fn an_address_that_is_not_confirmed_binds_nobody() {
    let setting = setting().await;
    setting.invite(&setting.acme, "ann").await;
    for said in [json!("true"), json!(false), json!(null)] {
        setting.provider.says(json!({"email": "ann@example.com", "email_verified": said}));
        setting.sign_in().await.is_problem(403, "no_membership", "");
    }
    setting.provider.says(json!({"email": "ann@example.com"}));
    setting.sign_in().await.is_problem(403, "no_membership", "");
    assert_eq!(setting.world.test.count("select count(*) from login_identity").await, 0);
    setting.provider.says(confirmed());
    assert_eq!(setting.sign_in().await.status, 303);
}

#[tokio::test]
async fn what_is_wrong_signs_nobody_in_and_is_not_told() {
    let setting = setting().await;
    setting.invite(&setting.acme, "ann").await;
    let now = OffsetDateTime::now_utc().unix_timestamp();
    for wrong in [
        json!({"iss": "http://other.example"}),
        json!({"aud": "another"}),
        json!({"aud": ["signalbox", "another"]}),
        json!({"exp": now - 120}),
        json!({"iat": now + 300}),
        json!({"nonce": "another"}),
        json!({"nonce": null}),
    ] {
        let mut claims = confirmed();
        for (name, value) in wrong.as_object().unwrap() {
            claims[name] = value.clone();
        }
        setting.provider.says(claims);
        // The nonce of the browser's request does not overwrite what is said.
        let failed = setting.sign_in().await;
        failed.is_problem(400, "sign_in_failed", "");
        assert!(failed.body.get("detail").is_none_or(Value::is_null), "{wrong}: {failed:?}");
    }
    for alg in ["HS256", "none", "RS256"] {
        setting.provider.says(confirmed());
        setting.provider.said.lock().alg = Some(alg);
        setting.sign_in().await.is_problem(400, "sign_in_failed", "");
    }
    setting.provider.says(confirmed());
    let (one, other) = (setting.begin("", "").await, setting.begin("", "").await);
    for (cookie, query) in [
        // Another browser's, none, another code, another issuer, a refusal, nothing.
        (&one.cookie, format!("code=the-code&state={}", other.state)),
        (&String::new(), format!("code=the-code&state={}", other.state)),
        (&other.cookie, format!("code=the-code&state={}", "0".repeat(64))),
        (&other.cookie, String::new()),
    ] {
        setting.finish(cookie, &query).await.is_problem(400, "sign_in_failed", "");
    }
    for rest in ["code=another", "code=the-code&iss=http://other.example", "error=access_denied", ""] {
        let way = setting.begin("", "").await;
        let failed = setting.finish(&way.cookie, &format!("{rest}&state={}", way.state)).await;
        failed.is_problem(400, "sign_in_failed", "");
    }
    // The code of one browser's way is no good on another's.
    let stolen = setting.begin("", "").await;
    setting.begin("", "").await;
    let failed = setting.finish(&stolen.cookie, &format!("code=the-code&state={}", stolen.state)).await;
    failed.is_problem(400, "sign_in_failed", "");
    setting.world.execute("update sign_in_token set expires_at = now()").await;
    let over = setting.begin("", "").await;
    setting.world.execute("update sign_in_token set expires_at = now()").await;
    let failed = setting.finish(&over.cookie, &format!("code=the-code&state={}", over.state)).await;
    failed.is_problem(400, "sign_in_failed", "");
    assert_eq!(setting.world.test.count("select count(*) from login_session").await, 0);
    let unknown = setting.world.call(Method::GET, "/sign-in/oidc/nobody").send().await;
    unknown.is_problem(404, "not_found", "");
}

#[tokio::test]
async fn a_provider_that_is_away_is_503() {
    let setting = setting().await;
    setting.provider.said.lock().is_away = true;
    let begun = setting.world.call(Method::GET, "/sign-in/oidc/corp").send().await;
    begun.is_problem(503, "issuer_unavailable", "");
    let page = seen(&setting.world, "").await;
    assert!(page.contains("The &lt;Corp&gt;"), "{page}");
}

#[tokio::test]
async fn a_member_with_a_login_adds_an_identity_while_signed_in() {
    let setting = setting().await;
    let world = &setting.world;
    let key = member(world, &setting.acme, "ann", "member").await;
    setting.provider.says(confirmed());
    setting.sign_in().await.is_problem(403, "no_membership", "");
    let add = world.post(&key, "/api/me/identities/oidc/corp", json!({})).await;
    assert_eq!(add.body["url"], "http://127.0.0.1:8080/sign-in/oidc/corp?add=true");
    // A browser that is not signed in, or by a key alone, adds nothing.
    let by_key = world.call(Method::POST, "/sign-in/key").json(&json!({"key": key})).send().await;
    for cookie in ["", &cookie_of(&by_key)] {
        let sent = world.call(Method::GET, "/sign-in/oidc/corp?add=true").header("cookie", cookie).send().await;
        assert_eq!(sent.headers[header::LOCATION], "/sign-in");
    }
    let link = json!({"account": "acme", "user_id": "ann"});
    let made = world.post(crate::world::OPERATOR, "/api/sign-in-links", link).await;
    let page = world
        .call(Method::POST, &crate::members::path_of(&made.body))
        .header("accept", "text/html")
        .send()
        .await;
    let session = cookie_of(&page);
    let way = setting.begin("?add=true", &session).await;
    let query = format!("code=the-code&state={}", way.state);
    // Signed out meanwhile: nothing is added.
    setting.finish(&way.cookie, &query).await.is_problem(400, "sign_in_failed", "");
    let way = setting.begin("?add=true", &session).await;
    let both = format!("{}; {session}", way.cookie);
    let added = setting.finish(&both, &format!("code=the-code&state={}", way.state)).await;
    assert_eq!(added.status, 303, "{added:?}");
    assert!(seen(world, &cookie_of(&setting.sign_in().await)).await.contains("acme"));
}
