//! Signing in by a provider of OpenID Connect, and what neither it nor a browser gets away with.

use std::sync::Arc;

use axum::http::{Method, header};
use serde_json::{Value, json};
use testkit::OpenIdProvider;
use time::OffsetDateTime;

use crate::{
    members::{member, path_of},
    sign_in::{cookie_of, seen},
    world::{Answer, OPERATOR, Tenant, World},
};

struct Setting {
    world: World,
    acme: Tenant,
    provider: Arc<OpenIdProvider>,
}

async fn setting() -> Setting {
    testkit::install_tls_provider();
    let provider = OpenIdProvider::start().await;
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
        assert_eq!(
            self.world
                .post(&tenant.admin, &tenant.path("/members"), new)
                .await
                .status,
            201
        );
    }

    async fn begin(&self, query: &str, cookie: &str) -> Underway {
        let path = format!("/sign-in/oidc/corp{query}");
        let begun = self
            .world
            .call(Method::GET, &path)
            .header("cookie", cookie)
            .send()
            .await;
        assert_eq!(begun.status, 303, "{begun:?}");
        let query = self.provider.visited(begun.headers[header::LOCATION].to_str().unwrap());
        assert_eq!(
            (query["response_type"].as_str(), query["code_challenge_method"].as_str()),
            ("code", "S256")
        );
        let back = "http://127.0.0.1:8080/sign-in/oidc/corp/callback";
        assert_eq!(
            (query["scope"].as_str(), query["redirect_uri"].as_str()),
            ("openid email", back)
        );
        Underway {
            cookie: cookie_of(&begun),
            state: query["state"].clone(),
        }
    }

    async fn finish(&self, cookie: &str, query: &str) -> Answer {
        let path = format!("/sign-in/oidc/corp/callback?{query}");
        self.world
            .call(Method::GET, &path)
            .header("cookie", cookie)
            .send()
            .await
    }

    /// There and back.
    async fn sign_in(&self) -> Answer {
        let way = self.begin("", "").await;
        self.finish(&way.cookie, &format!("code=the-code&state={}", way.state))
            .await
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
    assert_eq!(
        (back.status.as_u16(), back.headers[header::LOCATION].to_str().unwrap()),
        (303, "/c/acme"),
        "{back:?}"
    );
    let page = seen(world, &cookie_of(&back)).await;
    assert!(
        page.contains("<b>acme</b>: <code>ann</code>") && page.contains("<b>beta</b>: <code>ann-b</code>"),
        "{page}"
    );
    // Once.
    setting
        .finish(&way.cookie, &query)
        .await
        .is_problem(400, "sign_in_failed", "");

    // Known from now on, whatever address it has.
    setting
        .provider
        .says(json!({"email": "other@example.com", "email_verified": false}));
    assert!(seen(world, &cookie_of(&setting.sign_in().await)).await.contains("acme"));
    // Somebody else with the address binds nobody again.
    setting
        .provider
        .says(json!({"sub": "s-2", "email": "ann@example.com", "email_verified": true}));
    setting.sign_in().await.is_problem(403, "no_membership", "");
    // A person who is in no account any more signs in nowhere.
    for (tenant, user) in [(&setting.acme, "ann"), (&beta, "ann-b")] {
        assert_eq!(
            world
                .delete(&tenant.admin, &tenant.path(&format!("/members/{user}")))
                .await
                .status,
            204
        );
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
        setting
            .provider
            .says(json!({"email": "ann@example.com", "email_verified": said}));
        setting.sign_in().await.is_problem(403, "no_membership", "");
    }
    setting.provider.says(json!({"email": "ann@example.com"}));
    setting.sign_in().await.is_problem(403, "no_membership", "");
    assert_eq!(setting.world.test.count("select count(*) from login_identity").await, 0);
    setting.provider.says(confirmed());
    assert_eq!(setting.sign_in().await.status, 303);
}

/// As the standard has it where there is an access token.
#[tokio::test]
async fn an_address_that_the_provider_says_apart_counts_if_it_is_of_the_same_person() {
    let setting = setting().await;
    setting.invite(&setting.acme, "ann").await;
    for said in [
        json!(null),
        json!({"email": "ann@example.com", "email_verified": true}),
        json!({"sub": "s-2", "email": "ann@example.com", "email_verified": true}),
        json!({"sub": "s-1", "email": "ann@example.com", "email_verified": "true"}),
    ] {
        setting.provider.says_apart(said);
        setting.sign_in().await.is_problem(403, "no_membership", "");
    }
    setting
        .provider
        .says_apart(json!({"sub": "s-1", "email": "ann@example.com", "email_verified": true}));
    // What the token says goes before it.
    setting
        .provider
        .says(json!({"email": "ann@example.com", "email_verified": false}));
    setting.sign_in().await.is_problem(403, "no_membership", "");
    setting.provider.says(json!({}));
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
        assert!(
            failed.body.get("detail").is_none_or(Value::is_null),
            "{wrong}: {failed:?}"
        );
    }
    for alg in ["HS256", "none", "RS256"] {
        setting.provider.says(confirmed());
        setting.provider.signs_by(alg);
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
        setting
            .finish(cookie, &query)
            .await
            .is_problem(400, "sign_in_failed", "");
    }
    for rest in [
        "code=another",
        "code=the-code&iss=http://other.example",
        "error=access_denied",
        "",
    ] {
        let way = setting.begin("", "").await;
        let failed = setting
            .finish(&way.cookie, &format!("{rest}&state={}", way.state))
            .await;
        failed.is_problem(400, "sign_in_failed", "");
    }
    // The code of one browser's way is no good on another's.
    let stolen = setting.begin("", "").await;
    setting.begin("", "").await;
    let failed = setting
        .finish(&stolen.cookie, &format!("code=the-code&state={}", stolen.state))
        .await;
    failed.is_problem(400, "sign_in_failed", "");
    setting
        .world
        .execute("update sign_in_token set expires_at = now()")
        .await;
    let over = setting.begin("", "").await;
    setting
        .world
        .execute("update sign_in_token set expires_at = now()")
        .await;
    let failed = setting
        .finish(&over.cookie, &format!("code=the-code&state={}", over.state))
        .await;
    failed.is_problem(400, "sign_in_failed", "");
    assert_eq!(setting.world.test.count("select count(*) from login_session").await, 0);
    let unknown = setting.world.call(Method::GET, "/sign-in/oidc/nobody").send().await;
    unknown.is_problem(404, "not_found", "");
}

#[tokio::test]
async fn a_provider_that_is_away_is_503() {
    let setting = setting().await;
    setting.provider.is_away();
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
    let by_key = world
        .call(Method::POST, "/sign-in/key")
        .json(&json!({"key": key}))
        .send()
        .await;
    for cookie in ["", &cookie_of(&by_key)] {
        let sent = world
            .call(Method::GET, "/sign-in/oidc/corp?add=true")
            .header("cookie", cookie)
            .send()
            .await;
        assert_eq!(sent.headers[header::LOCATION], "/sign-in");
    }
    let link = json!({"account": "acme", "user_id": "ann"});
    let made = world.post(OPERATOR, "/api/sign-in-links", link).await;
    let page = world
        .call(Method::POST, &path_of(&made.body))
        .header("accept", "text/html")
        .send()
        .await;
    let session = cookie_of(&page);
    let way = setting.begin("?add=true", &session).await;
    let query = format!("code=the-code&state={}", way.state);
    // Signed out meanwhile: nothing is added.
    setting
        .finish(&way.cookie, &query)
        .await
        .is_problem(400, "sign_in_failed", "");
    let way = setting.begin("?add=true", &session).await;
    let both = format!("{}; {session}", way.cookie);
    let added = setting
        .finish(&both, &format!("code=the-code&state={}", way.state))
        .await;
    assert_eq!(added.status, 303, "{added:?}");
    assert!(seen(world, &cookie_of(&setting.sign_in().await)).await.contains("acme"));
}
