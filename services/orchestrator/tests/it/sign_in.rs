//! Browser sessions: their cookies, forms and ends.

use axum::http::{Method, header};
use serde_json::{Value, json};

use crate::{
    members::{member, path_of},
    world::{Answer, OPERATOR, World},
};

const FORM: &str = "application/x-www-form-urlencoded";

/// The cookie that an answer sets, as a browser sends it.
pub(crate) fn cookie_of(answer: &Answer) -> String {
    let set = answer.headers[header::SET_COOKIE].to_str().unwrap();
    assert!(
        set.contains("HttpOnly") && set.contains("SameSite=Lax") && set.contains("Path=/"),
        "{set}"
    );
    set.split(';').next().unwrap().to_owned()
}

/// A form of this site's pages.
async fn submit(world: &World, path: &str, cookie: &str, fields: &str) -> Answer {
    let call = world
        .call(Method::POST, path)
        .header("accept", "text/html")
        .header("content-type", FORM);
    let call = call.header("sec-fetch-site", "same-origin").header("cookie", cookie);
    call.raw(fields).send().await
}

/// What a browser sees of itself.
pub(crate) async fn seen(world: &World, cookie: &str) -> String {
    let page = world
        .call(Method::GET, "/sign-in")
        .header("accept", "text/html")
        .header("cookie", cookie);
    page.send().await.body.as_str().unwrap().to_owned()
}

fn is_in(page: &str) -> bool {
    page.contains("You are signed in")
}

/// A browser that opens a link of the member's.
async fn by_link(world: &World, account: &str, user: &str, cookie: &str) -> Answer {
    by_link_for(world, account, user, cookie, false).await
}

/// The same by a link that takes the member out of their login.
async fn by_link_for(world: &World, account: &str, user: &str, cookie: &str, another_login: bool) -> Answer {
    let new = json!({"account": account, "user_id": user, "another_login": another_login});
    let made = world.post(OPERATOR, "/api/sign-in-links", new).await;
    submit(world, &path_of(&made.body), cookie, "").await
}

#[tokio::test]
async fn a_browser_is_signed_in_until_it_signs_out() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let key = member(&world, &tenant, "ann", "member").await;
    let first = cookie_of(&by_link(&world, "acme", "ann", "").await);
    let second = cookie_of(&submit(&world, "/sign-in/key", "", &format!("key={key}&next=/c/acme")).await);
    for cookie in [&first, &second] {
        let page = seen(&world, cookie).await;
        assert!(is_in(&page) && page.contains("<b>acme</b>: <code>ann</code>"), "{page}");
    }
    let own = world.get(&key, "/api/me/sign-ins").await;
    assert_eq!(own.column("method"), ["key", "link"]);
    let me = world.get(&key, "/api/me").await;
    assert_eq!(me.body["accounts"], json!([{"account": "acme", "user_id": "ann"}]));

    // Each sign-in has a cookie of its own, and ends the one before in this browser.
    let third = cookie_of(&by_link(&world, "acme", "ann", &first).await);
    assert!(!is_in(&seen(&world, &first).await) && is_in(&seen(&world, &third).await));

    // Nobody else's.
    let ben = member(&world, &tenant, "ben", "member").await;
    let id = &world.get(&key, "/api/me/sign-ins").await.column("id")[0];
    let path = format!("/api/me/sign-ins/{id}");
    world.delete(&ben, &path).await.is_problem(404, "not_found", "");
    assert_eq!(world.get(&ben, "/api/me/sign-ins").await.column("id"), [""; 0]);
    assert_eq!(world.delete(&key, &path).await.status, 204);
    assert!(!is_in(&seen(&world, &third).await));

    let out = submit(&world, "/sign-out", &second, "").await;
    assert_eq!(
        (out.status.as_u16(), out.headers[header::LOCATION].to_str().unwrap()),
        (303, "/sign-in")
    );
    assert!(out.headers[header::SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert!(!is_in(&seen(&world, &second).await));

    let both = [
        by_link(&world, "acme", "ann", "").await,
        by_link(&world, "acme", "ann", "").await,
    ]
    .map(|one| cookie_of(&one));
    submit(&world, "/sign-out", &both[0], "everywhere=true").await;
    assert!(!is_in(&seen(&world, &both[1]).await));
}

#[tokio::test]
async fn a_session_that_a_key_opened_ends_with_the_key_and_reaches_its_account_alone() {
    let world = World::new().await;
    let (acme, beta) = (world.tenant("acme").await, world.tenant("beta").await);
    let key = member(&world, &acme, "ann", "member").await;
    member(&world, &beta, "ann", "member").await;
    let by_key = submit(&world, "/sign-in/key", "", &format!("key={key}")).await;
    assert_eq!(by_key.headers[header::LOCATION], "/");
    let by_key = cookie_of(&by_key);
    // It binds no further account.
    let beta_too = cookie_of(&by_link(&world, "beta", "ann", &by_key).await);
    assert!(!seen(&world, &beta_too).await.contains("acme"));

    let whole = cookie_of(&by_link(&world, "acme", "ann", "").await);
    // Who has a login keeps it, whoever's browser opens the link.
    let theirs = cookie_of(&by_link(&world, "beta", "ann", &whole).await);
    assert!(!seen(&world, &theirs).await.contains("acme"));
    let whole = cookie_of(&by_link(&world, "acme", "ann", "").await);
    let whole = cookie_of(&by_link_for(&world, "beta", "ann", &whole, true).await);
    let page = seen(&world, &whole).await;
    assert!(page.contains("acme") && page.contains("beta"), "{page}");
    let by_key = cookie_of(&submit(&world, "/sign-in/key", "", &format!("key={key}")).await);
    let page = seen(&world, &by_key).await;
    assert!(page.contains("acme") && !page.contains("beta"), "{page}");
    submit(&world, "/sign-out", &by_key, "everywhere=true").await;
    assert!(is_in(&seen(&world, &whole).await));

    let by_key = cookie_of(&submit(&world, "/sign-in/key", "", &format!("key={key}")).await);
    world
        .execute("update api_key set revoked_at = now() where user_id = 'ann'")
        .await;
    assert!(!is_in(&seen(&world, &by_key).await) && is_in(&seen(&world, &whole).await));
    for (key, status) in [(&key, 401), (&acme.admin, 403), (&"nonsense".to_owned(), 401)] {
        let refused = world
            .call(Method::POST, "/sign-in/key")
            .json(&json!({"key": key}))
            .send()
            .await;
        assert_eq!(refused.status, status, "{refused:?}");
    }
}

#[tokio::test]
async fn a_session_is_over_after_its_time_and_when_it_rests() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    member(&world, &tenant, "ann", "member").await;
    for over in [
        "expires_at = now(), ends_at = now()",
        "ends_at = now() - interval '1 s'",
    ] {
        let cookie = cookie_of(&by_link(&world, "acme", "ann", "").await);
        assert!(is_in(&seen(&world, &cookie).await));
        world.execute(format!("update login_session set {over}")).await;
        assert!(!is_in(&seen(&world, &cookie).await), "{over}");
    }
    // A request once ten minutes have passed puts the end off, and never beyond the last day.
    let cookie = cookie_of(&by_link(&world, "acme", "ann", "").await);
    world
        .execute("update login_session set seen_at = now() - interval '11 minutes', ends_at = now() + interval '1 minute', expires_at = now() + interval '1 hour'")
        .await;
    assert!(is_in(&seen(&world, &cookie).await));
    let put_off =
        "select count(*) from login_session where ends_at = expires_at and seen_at > now() - interval '1 minute'";
    assert!(world.test.count(put_off).await > 0);
    // Of more than 50, the one that was used least recently ends.
    for _ in 0..51 {
        by_link(&world, "acme", "ann", "").await;
    }
    assert_eq!(world.test.count("select count(*) from login_session").await, 50);
}

#[tokio::test]
async fn a_form_of_another_site_does_nothing() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let key = member(&world, &tenant, "ann", "member").await;
    let cookie = cookie_of(&by_link(&world, "acme", "ann", "").await);
    let check = async |headers: &[(&'static str, &str)], expected: u16| {
        let call = world
            .call(Method::POST, "/sign-in/key")
            .header("host", "127.0.0.1:8080");
        let call = headers
            .iter()
            .fold(call, |call, (name, value)| call.header(name, value));
        let answer = call.json(&json!({"key": key})).send().await;
        assert_eq!(answer.status, expected, "{headers:?}: {answer:?}");
    };
    check(&[], 200).await;
    check(&[("cookie", &cookie)], 403).await;
    check(&[("cookie", &cookie), ("sec-fetch-site", "cross-site")], 403).await;
    check(
        &[("sec-fetch-site", "same-site"), ("origin", "https://evil.example")],
        403,
    )
    .await;
    check(&[("cookie", &cookie), ("origin", "https://evil.example")], 403).await;
    check(
        &[
            ("cookie", &cookie),
            ("origin", "null"),
            ("sec-fetch-site", "same-origin"),
        ],
        200,
    )
    .await;
    check(&[("cookie", &cookie), ("origin", "http://127.0.0.1:8080")], 200).await;
    // The API takes bearers only.
    let me = world
        .call(Method::GET, "/api/me")
        .header("cookie", &cookie)
        .send()
        .await;
    me.is_problem(401, "unauthorized", "");
    // A program that uses a link is no browser.
    let made = world
        .post(
            OPERATOR,
            "/api/sign-in-links",
            json!({"account": "acme", "user_id": "ann"}),
        )
        .await;
    let program = world.call(Method::POST, &path_of(&made.body)).send().await;
    assert!(program.headers.get(header::SET_COOKIE).is_none());
    let long = world
        .call(Method::POST, "/sign-in/key")
        .json(&json!({"key": "k".repeat(5_000)}))
        .send()
        .await;
    assert_eq!(long.status, 413);
}

#[tokio::test]
async fn no_browser_signs_in_where_no_cookie_is_safe() {
    let plain = |settings: &mut orchestrator::OrchestratorSettings| {
        settings.public_url = Some("http://signalbox.example.com".to_owned().try_into().unwrap());
    };
    let world = World::with(plain).await;
    let tenant = world.tenant("acme").await;
    let made = world
        .post(
            &tenant.admin,
            &tenant.path("/members"),
            json!({"user_id": "ann", "name": "Ann", "role": "member", "invite": true}),
        )
        .await;
    let link = made.body["link"]["sign_in_link"].as_str().unwrap();
    let path = link.strip_prefix("http://signalbox.example.com").unwrap();
    let page = submit(&world, path, "", "").await;
    assert_eq!(page.status, 200);
    assert!(page.headers.get(header::SET_COOKIE).is_none());
    let methods = world.call(Method::GET, "/api/sign-in/methods").send().await;
    assert_eq!(
        methods.body,
        json!({"key": false, "email": false, "oidc": Value::Array(Vec::new())})
    );
}
