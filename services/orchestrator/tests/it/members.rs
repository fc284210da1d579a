//! Members, their links and their own keys.

use axum::{
    body::Body,
    http::{Method, Request},
};
use serde_json::{Value, json};

use crate::world::{Answer, OPERATOR, Tenant, World};

/// The path of a sign-in link.
pub(crate) fn path_of(link: &Value) -> String {
    let link = link["sign_in_link"].as_str().unwrap();
    let path = link.strip_prefix("http://127.0.0.1:8080").unwrap();
    assert!(path.starts_with("/sign-in/"), "{path}");
    path.to_owned()
}

/// Uses a link as a program does.
async fn redeem(world: &World, path: &str) -> Answer {
    world.call(Method::POST, path).send().await
}

/// Adds a member who signs in; gives the key.
pub(crate) async fn member(world: &World, tenant: &Tenant, user: &str, role: &str) -> String {
    let new = json!({"user_id": user, "name": format!("{user}'s name"), "email": format!("{user}@example.com"),
        "role": role, "invite": true});
    let made = world.post(&tenant.admin, &tenant.path("/members"), new).await;
    assert_eq!(made.status, 201, "{made:?}");
    let signed_in = redeem(world, &path_of(&made.body["link"])).await;
    assert_eq!(signed_in.status, 201, "{signed_in:?}");
    signed_in.body["key"]["key"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_invited_person_comes_in_by_a_link_that_works_once() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let new = json!({"email": "Ann.B@Example.com", "name": "<Ann>", "role": "member", "invite": true});
    let made = world.post(&tenant.admin, &tenant.path("/members"), new).await;
    assert_eq!((made.status.as_u16(), &made.body["user_id"]), (201, &json!("ann.b")));
    assert_eq!(made.body["email"], "ann.b@example.com");
    assert_eq!(made.body["signed_in"], false);
    let path = path_of(&made.body["link"]);

    // Whoever looks, even twice, uses nothing.
    for _ in 0..2 {
        let page = world
            .call(Method::GET, &path)
            .header("accept", "text/html")
            .send()
            .await;
        assert_eq!(page.status, 200);
        let html = page.body.as_str().unwrap();
        assert!(
            html.contains("&lt;Ann&gt;") && html.contains("method=\"post\""),
            "{html}"
        );
        assert_eq!(page.headers["referrer-policy"], "no-referrer");
        assert_eq!(page.headers["cache-control"], "no-store");
        assert!(
            page.headers["content-security-policy"]
                .to_str()
                .unwrap()
                .contains("default-src 'none'")
        );
    }
    let signed_in = redeem(&world, &path).await;
    assert_eq!(signed_in.status, 201, "{signed_in:?}");
    assert_eq!(
        (&signed_in.body["account"], &signed_in.body["user_id"]),
        (&json!("acme"), &json!("ann.b"))
    );
    let key = signed_in.body["key"]["key"].as_str().unwrap();
    let me = world.get(key, "/api/me").await;
    assert_eq!(me.status, 200);
    assert_eq!(
        (
            &me.body["account"],
            &me.body["user_id"],
            &me.body["name"],
            &me.body["role"],
            &me.body["time_zone"]
        ),
        (
            &json!("acme"),
            &json!("ann.b"),
            &json!("<Ann>"),
            &json!("member"),
            &json!("UTC")
        )
    );
    assert_eq!(
        (&me.body["signed_in"], &me.body["email"]),
        (&json!(true), &json!("ann.b@example.com"))
    );
    let may: Vec<&str> = me.body["may"]
        .as_array()
        .unwrap()
        .iter()
        .map(|need| need.as_str().unwrap())
        .collect();
    assert!(
        may.contains(&"person") && may.contains(&"read") && !may.contains(&"administer"),
        "{may:?}"
    );

    redeem(&world, &path).await.is_problem(410, "link_used", "works once");
    let page = world
        .call(Method::GET, &path)
        .header("accept", "text/html")
        .send()
        .await;
    assert_eq!(page.status, 410);
    assert!(page.body.as_str().unwrap().contains("This link was used"));
    for unknown in [
        format!("/sign-in/acme_{}", "0".repeat(64)),
        "/sign-in/nowhere".to_owned(),
        format!("{path}0"),
    ] {
        redeem(&world, &unknown)
            .await
            .is_problem(410, "link_expired", "another one");
    }
    let changed = world
        .patch(key, "/api/me", json!({"name": "Ann", "time_zone": "Europe/Berlin"}))
        .await;
    assert_eq!(
        (&changed.body["name"], &changed.body["time_zone"]),
        (&json!("Ann"), &json!("Europe/Berlin"))
    );
    for bad in [
        json!({"time_zone": "Mars/Base"}),
        json!({"time_zone": "posix/Europe/Berlin"}),
        json!({"name": "Signalbox"}),
        json!({"role": "admin"}),
    ] {
        world
            .patch(key, "/api/me", bad)
            .await
            .is_problem(400, "invalid_field", "");
    }
}

#[tokio::test]
async fn a_form_shows_the_key_once_and_its_page_loads_nothing() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let new = json!({"user_id": "ann", "name": "Ann", "role": "admin", "invite": true});
    let made = world.post(&tenant.admin, &tenant.path("/members"), new).await;
    let path = path_of(&made.body["link"]);
    let form = |path: String| {
        let call = world.call(Method::POST, &path).header("accept", "text/html");
        async {
            call.header("content-type", "application/x-www-form-urlencoded")
                .send()
                .await
        }
    };
    let page = form(path.clone()).await;
    assert_eq!(page.status, 200);
    let html = page.body.as_str().unwrap();
    let key = html.split("<pre>").nth(1).unwrap().split("</pre>").next().unwrap();
    assert_eq!(world.get(key, "/api/me").await.body["role"], "admin");
    let again = form(path).await;
    assert_eq!(again.status, 410);
    assert!(again.body.as_str().unwrap().contains("This link was used"));
}

#[tokio::test]
async fn two_who_open_one_link_at_one_time_get_one_key() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let new = json!({"user_id": "ann", "name": "Ann", "role": "member", "invite": true});
    let made = world.post(&tenant.admin, &tenant.path("/members"), new).await;
    let path = path_of(&made.body["link"]);
    let all = futures::future::join_all((0..8).map(|_| redeem(&world, &path))).await;
    let mut codes: Vec<u16> = all.iter().map(|answer| answer.status.as_u16()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [201, 410, 410, 410, 410, 410, 410, 410]);
    assert_eq!(
        world
            .test
            .count("select count(*) from api_key where user_id = 'ann'")
            .await,
        1
    );
}

#[tokio::test]
async fn a_link_is_over_when_its_time_is_or_when_a_newer_one_is_made() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let new = json!({"user_id": "ann", "name": "Ann", "role": "member", "invite": true});
    let made = world.post(&tenant.admin, &tenant.path("/members"), new).await;
    let first = path_of(&made.body["link"]);
    let another = || world.post(&tenant.admin, "/api/orgs/acme/members/ann/sign-in-link", json!({}));
    let second = path_of(&another().await.body);
    redeem(&world, &first)
        .await
        .is_problem(410, "link_expired", "newer one");
    world
        .execute("update member set link_expires_at = now() - interval '1 s'")
        .await;
    redeem(&world, &second).await.is_problem(410, "link_expired", "expired");
    let third = path_of(&another().await.body);
    assert_eq!(redeem(&world, &third).await.status, 201);

    // Who has signed in gets links from the operator alone: an admin could otherwise act as them.
    another().await.is_problem(409, "has_signed_in", "operator");
    let link = |body: Value| world.post(OPERATOR, "/api/sign-in-links", body);
    let made = link(json!({"account": "acme", "user_id": "ann", "minutes": 5})).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(redeem(&world, &path_of(&made.body)).await.body["user_id"], "ann");
    link(json!({"account": "acme", "user_id": "bob"}))
        .await
        .is_problem(400, "unknown_user", "no member bob");
    link(json!({"account": "nowhere", "user_id": "ann"}))
        .await
        .is_problem(400, "unknown_user", "nowhere");
    link(json!({"account": "acme", "user_id": "ann", "minutes": 10_081}))
        .await
        .is_problem(400, "invalid_field", "minutes: at most 10080");
    let all = world.get(&tenant.member, &tenant.path("/members")).await;
    assert_eq!(all.column("signed_in"), ["true"]);
}

#[tokio::test]
async fn a_link_and_its_key_are_kept_as_digests() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let new = json!({"user_id": "ann", "name": "Ann", "role": "member", "invite": true});
    let ask = |body: &Value| {
        let call = world.call(Method::POST, "/api/orgs/acme/members").token(&tenant.admin);
        call.header("idempotency-key", "k").json(body).send()
    };
    let made = ask(&new).await;
    let path = path_of(&made.body["link"]);
    let again = ask(&new).await;
    assert_eq!(again.status, 201);
    assert_eq!(again.body["link"]["sign_in_link"], Value::Null);
    assert_eq!(again.body["link"]["expires_at"], made.body["link"]["expires_at"]);
    let key = redeem(&world, &path).await.body["key"]["key"]
        .as_str()
        .unwrap()
        .to_owned();
    let secrets = [path.rsplit_once('_').unwrap().1, key.split('_').nth(3).unwrap()];
    for table in ["member", "api_key", "idempotency", "outbox"] {
        let rows = world
            .test
            .texts(format!("select {table}::text from {table}").leak())
            .await;
        for secret in secrets {
            assert!(rows.iter().all(|row| !row.contains(secret)), "{table}");
        }
    }
}

#[tokio::test]
async fn a_person_is_the_author_of_what_their_keys_do() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    let key = member(&world, &tenant, "ann", "member").await;
    let posted = world
        .post(&key, &tenant.path("/tasks/PROJ-7/messages"), json!({"body": "hello"}))
        .await;
    assert_eq!(posted.status, 201, "{posted:?}");
    let author = json!({"kind": "user", "id": "ann", "name": "ann's name"});
    assert_eq!(posted.body["author"], author);
    let other = json!({"body": "hello", "author": {"kind": "user", "id": "bob", "name": "Bob"}});
    world
        .post(&key, &tenant.path("/tasks/PROJ-7/messages"), other)
        .await
        .is_problem(403, "forbidden", "speak for themselves");
}

#[tokio::test]
async fn another_role_and_a_removal_hold_from_the_next_request() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let (ann, bob) = (
        member(&world, &tenant, "ann", "admin").await,
        member(&world, &tenant, "bob", "admin").await,
    );
    let keys = tenant.path("/keys");
    assert_eq!(world.get(&bob, &keys).await.status, 200);
    let changed = world
        .patch(&ann, &tenant.path("/members/bob"), json!({"role": "member"}))
        .await;
    assert_eq!(
        (changed.status.as_u16(), &changed.body["role"]),
        (200, &json!("member"))
    );
    world.get(&bob, &keys).await.is_problem(403, "forbidden", "role member");
    assert_eq!(world.get(&bob, "/api/me").await.body["role"], "member");
    world
        .patch(&ann, &tenant.path("/members/bob"), json!({"role": "admin"}))
        .await;
    assert_eq!(world.get(&bob, &keys).await.status, 200);

    assert_eq!(world.delete(&bob, &tenant.path("/members/ann")).await.status, 204);
    world.get(&ann, "/api/me").await.is_problem(401, "unauthorized", "");
    world
        .delete(&bob, &tenant.path("/members/ann"))
        .await
        .is_problem(404, "not_found", "");
    assert_eq!(
        world.get(&bob, &tenant.path("/members")).await.column("user_id"),
        ["bob"]
    );

    // Her id is hers for ever: she returns with her address, and her old keys do not.
    let again = |email: &str| {
        let new = json!({"user_id": "ann", "name": "Ann again", "email": email, "role": "member", "invite": true});
        world.post(&tenant.admin, "/api/orgs/acme/members", new)
    };
    again("mallory@example.com")
        .await
        .is_problem(409, "user_id_taken", "another person's");
    let returned = again("Ann@example.com").await;
    assert_eq!(
        (returned.status.as_u16(), &returned.body["signed_in"]),
        (201, &json!(true))
    );
    world.get(&ann, "/api/me").await.is_problem(401, "unauthorized", "");
    // The admin who lets her in does not get a link that signs in as her.
    assert_eq!(returned.body["link"], Value::Null);
    let link = world
        .post(&tenant.admin, "/api/orgs/acme/members/ann/sign-in-link", json!({}))
        .await;
    link.is_problem(409, "has_signed_in", "");
    let link = json!({"account": "acme", "user_id": "ann"});
    let link = world.post(OPERATOR, "/api/sign-in-links", link).await;
    let key = redeem(&world, &path_of(&link.body)).await;
    let key = key.body["key"]["key"].as_str().unwrap();
    assert_eq!(world.get(key, "/api/me").await.body["name"], "Ann again");
    again("ann@example.com").await.is_problem(409, "user_id_taken", "");
}

/// No one would see what a private persona of somebody who left does in the account's prompts.
#[tokio::test]
async fn a_removed_member_s_private_personas_go_with_them() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    world.agent(&tenant, "coder").await;
    for (slug, visibility) in [("own", "private"), ("team", "shared")] {
        let new = json!({"slug": slug, "name": slug, "visibility": visibility, "files": [{"filename": "A.md", "content": slug}]});
        assert_eq!(world.post(&ann, &tenant.path("/personas"), new).await.status, 201);
        let task = json!({"id": slug, "title": slug, "assignees": ["coder"], "persona": slug});
        assert_eq!(world.post(&ann, &tenant.path("/tasks"), task).await.status, 201);
    }
    assert_eq!(
        world.delete(&tenant.admin, &tenant.path("/members/ann")).await.status,
        204
    );
    let left = "select slug from persona where removed_at is null";
    assert_eq!(world.test.texts(left).await, ["team"]);
    let task = world.get(&tenant.admin, &tenant.path("/tasks/own")).await;
    assert_eq!(task.body["persona"], Value::Null);
}

#[tokio::test]
async fn an_account_keeps_its_last_admin() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let (ann, bob) = (
        member(&world, &tenant, "ann", "admin").await,
        member(&world, &tenant, "bob", "admin").await,
    );
    let (ann_path, bob_path) = (tenant.path("/members/ann"), tenant.path("/members/bob"));
    // Each demotes the other at one time.
    let demote = json!({"role": "member"});
    let (first, second) = tokio::join!(
        world.patch(&ann, &bob_path, demote.clone()),
        world.patch(&bob, &ann_path, demote.clone())
    );
    let mut statuses = [first.status.as_u16(), second.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses[0], 200, "{first:?} {second:?}");
    assert!([403, 409].contains(&statuses[1]), "{first:?} {second:?}");
    let admins = "select user_id from member where role = 'admin' and removed_at is null";
    let admins = world.test.texts(admins).await;
    assert_eq!(admins.len(), 1);
    let last = tenant.path(&format!("/members/{}", admins[0]));
    // Who was invited may never come.
    let invited = json!({"user_id": "ghost", "name": "Ghost", "role": "admin"});
    world.post(&tenant.admin, &tenant.path("/members"), invited).await;
    world
        .patch(&tenant.admin, &last, demote)
        .await
        .is_problem(409, "last_admin", "another member");
    world
        .delete(&tenant.admin, &last)
        .await
        .is_problem(409, "last_admin", "");
    let ghost = world.delete(&tenant.admin, &tenant.path("/members/ghost")).await;
    assert_eq!(ghost.status, 204);
    let renamed = world
        .patch(&tenant.admin, &last, json!({"name": "The last", "email": null}))
        .await;
    assert_eq!((renamed.status.as_u16(), &renamed.body["email"]), (200, &Value::Null));
}

#[tokio::test]
async fn an_id_and_an_address_are_one_persons() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let add = |body: Value| world.post(&tenant.admin, "/api/orgs/acme/members", body);
    let of = |email: &str| json!({"email": email, "name": "Ann", "role": "member"});
    assert_eq!(add(of("ann@a.example")).await.body["user_id"], "ann");
    assert_eq!(add(of("ann@b.example")).await.body["user_id"], "ann-2");
    add(of("ANN@a.example")).await.is_problem(409, "email_taken", "");
    add(json!({"name": "Ann", "role": "member"}))
        .await
        .is_problem(400, "invalid_field", "user_id");
    add(of("operator@a.example"))
        .await
        .is_problem(400, "invalid_field", "user_id");
    for user in ["operator", "Signalbox", "0011223344556677", "Ann", "a b", ""] {
        let new = json!({"user_id": user, "name": "Ann", "role": "member"});
        add(new).await.is_problem(400, "invalid_field", "user_id");
    }
    for email in ["ann", "a@b@c", "a b@c"] {
        add(of(email)).await.is_problem(400, "invalid_field", "email");
    }
    let change = |user: &str, email: &str| {
        let path = tenant.path(&format!("/members/{user}"));
        let admin = tenant.admin.clone();
        let body = json!({"email": email});
        let world = &world;
        async move { world.patch(&admin, &path, body).await }
    };
    change("ann-2", "ann@a.example")
        .await
        .is_problem(409, "email_taken", "");
    assert_eq!(change("ann-2", "ann@c.example").await.status, 200);
    // Addresses are personal: members see names.
    let list = world.get(&tenant.member, &tenant.path("/members")).await;
    assert_eq!(list.column("user_id"), ["ann", "ann-2"]);
    assert_eq!(list.column("email"), ["null", "null"]);
    let list = world.get(&tenant.admin, &tenant.path("/members")).await;
    assert_eq!(list.column("email"), ["ann@a.example", "ann@c.example"]);
    world
        .get(&tenant.service, &tenant.path("/members"))
        .await
        .is_problem(403, "forbidden", "");
}

#[tokio::test]
async fn keys_of_ones_own_do_no_more_than_the_key_that_makes_them() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "admin").await;
    let bob = member(&world, &tenant, "bob", "member").await;
    let make = async |key: &str, body: Value| world.post(key, "/api/me/keys", body).await;
    let limited = make(
        &ann,
        json!({"name": "laptop", "role": "member", "expires_at": "2999-01-01T00:00:00Z"}),
    )
    .await;
    assert_eq!(
        (limited.status.as_u16(), &limited.body["user_id"]),
        (201, &json!("ann"))
    );
    let limited = limited.body["key"].as_str().unwrap();
    world
        .get(limited, &tenant.path("/keys"))
        .await
        .is_problem(403, "forbidden", "");
    // Neither a greater role nor a longer life.
    make(limited, json!({"name": "x", "role": "admin"}))
        .await
        .is_problem(403, "forbidden", "may do more");
    make(limited, json!({"name": "x", "expires_at": "2999-01-01T00:00:01Z"}))
        .await
        .is_problem(403, "forbidden", "lasts longer");
    let child = make(limited, json!({"name": "x"})).await;
    assert_eq!(
        (&child.body["role"], &child.body["expires_at"]),
        (&json!("member"), &json!("2999-01-01T00:00:00Z"))
    );
    make(&bob, json!({"name": "x", "role": "admin"}))
        .await
        .is_problem(403, "forbidden", "");

    // What is another person's is not there.
    let own = world.get(&ann, "/api/me/keys").await;
    assert_eq!(own.column("name"), ["sign-in link", "laptop", "x"]);
    let id = own.column("id")[1].clone();
    let first = format!("/api/me/keys/{}", own.column("id")[0]);
    world
        .delete(limited, &first)
        .await
        .is_problem(403, "forbidden", "revokes no admin's key");
    world
        .delete(&bob, &format!("/api/me/keys/{id}"))
        .await
        .is_problem(404, "not_found", "");
    assert_eq!(world.delete(&ann, &format!("/api/me/keys/{id}")).await.status, 204);
    world.get(limited, "/api/me").await.is_problem(401, "unauthorized", "");
    // Admins see all keys of the account, and whose they are.
    let all = world.get(&tenant.admin, &tenant.path("/keys")).await;
    assert_eq!(all.column("user_id").iter().filter(|user| *user == "ann").count(), 2);

    for key in [&tenant.admin, &tenant.member] {
        world
            .get(key, "/api/me")
            .await
            .is_problem(403, "not_a_person", "sign in");
    }
    world
        .get(OPERATOR, "/api/me")
        .await
        .is_problem(403, "not_a_person", "sign in");
    for _ in 0..49 {
        assert_eq!(make(&bob, json!({"name": "x"})).await.status, 201);
    }
    make(&bob, json!({"name": "x"}))
        .await
        .is_problem(409, "key_limit", "50 keys");
}

/// Runs the request while this change is written and not committed, commits the change once the request waits for it, and gives the
/// answer.
async fn overtaken(world: &World, change: &str, request: impl Future<Output = Answer>) -> Answer {
    let mut writing = world.test.owner.begin().await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(change.to_owned()))
        .execute(&mut *writing)
        .await
        .unwrap();
    let commit = async {
        world.test.lock_is_awaited().await;
        writing.commit().await.unwrap();
    };
    tokio::join!(request, commit).0
}

#[tokio::test]
async fn a_removal_ends_the_link_that_was_not_used() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let invite = async |user: &str| {
        let new = json!({"user_id": user, "name": user, "role": "member", "invite": true});
        let made = world.post(&tenant.admin, &tenant.path("/members"), new).await;
        path_of(&made.body["link"])
    };
    let path = invite("ann").await;
    world.delete(&tenant.admin, &tenant.path("/members/ann")).await;
    redeem(&world, &path).await.is_problem(410, "link_expired", "");

    // The removal overtakes the link's use.
    let path = invite("bob").await;
    let removal = "update member set removed_at = now() where user_id = 'bob'";
    overtaken(&world, removal, redeem(&world, &path))
        .await
        .is_problem(410, "link_expired", "");
    assert_eq!(
        world
            .test
            .count("select count(*) from api_key where user_id is not null")
            .await,
        0
    );
}

#[tokio::test]
async fn a_key_that_is_revoked_meanwhile_makes_none() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let revocation = "update api_key set revoked_at = now() where user_id = 'ann'";
    let make = world.post(&ann, "/api/me/keys", json!({"name": "x"}));
    overtaken(&world, revocation, make)
        .await
        .is_problem(401, "unauthorized", "");
    assert_eq!(
        world
            .test
            .count("select count(*) from api_key where user_id = 'ann'")
            .await,
        1
    );
}

/// Whoever has shown no token does not make the service keep a body, or wait for one.
#[tokio::test]
async fn a_body_that_never_ends_is_not_read() {
    let world = World::new().await;
    let body = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let request = Request::post("/sign-in/acme_0").body(body).unwrap();
    world.answer(request).await.is_problem(410, "link_expired", "");
}

/// Listeners hear of each change that was committed, and no text of it.
#[tokio::test]
async fn changes_of_people_keys_agents_and_settings_are_events() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.agent(&tenant, "coder").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let changed = [
        world
            .patch(
                &tenant.admin,
                &tenant.path("/members/ann"),
                json!({"email": "ann@acme.example"}),
            )
            .await,
        world.patch(&ann, "/api/me", json!({"name": "Ann"})).await,
        world.post(&ann, "/api/me/keys", json!({"name": "laptop"})).await,
        world
            .patch(&tenant.admin, &tenant.path(""), json!({"name": "Acme"}))
            .await,
        world
            .patch(&tenant.admin, &tenant.path("/agents/coder"), json!({"name": "Coder"}))
            .await,
    ];
    for answer in &changed {
        assert!(answer.status.is_success(), "{answer:?}");
    }
    let laptop = changed[2].body["id"].as_str().unwrap();
    for path in [format!("/keys/{laptop}"), "/members/ann".to_owned()] {
        assert_eq!(world.delete(&tenant.admin, &tenant.path(&path)).await.status, 204);
    }
    // What is refused is no event.
    assert_eq!(
        world.delete(&tenant.admin, &tenant.path("/members/ann")).await.status,
        404
    );

    let events = world.sent_on("signalbox.event.acme.-.").await;
    let told = events.iter().map(|event| {
        let (kind, data) = (&event.payload["type"], &event.payload["data"]);
        json!([kind, data["user_id"], data["change"], data["by"]["name"]])
    });
    let told: Vec<Value> = told
        .filter(|told| told[1] == "ann" || told[0] == "agent.changed" || told[0] == "account.changed")
        .collect();
    let expected = [
        json!(["account.changed", null, "created", "Operator"]),
        json!(["agent.changed", null, "created", "a admin"]),
        json!(["member.changed", "ann", "created", "a admin"]),
        json!(["key.changed", "ann", "created", "ann's name"]),
        json!(["member.changed", "ann", "changed", "ann's name"]),
        json!(["member.changed", "ann", "changed", "a admin"]),
        json!(["member.changed", "ann", "changed", "ann's name"]),
        json!(["key.changed", "ann", "created", "Ann"]),
        json!(["account.changed", null, "changed", "a admin"]),
        json!(["agent.changed", null, "changed", "a admin"]),
        json!(["key.changed", "ann", "removed", "a admin"]),
        json!(["member.changed", "ann", "removed", "a admin"]),
    ];
    assert_eq!(told, expected);
}
