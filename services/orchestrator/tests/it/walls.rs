//! Who may come in: every route, every role, and two accounts that must not see each other.

use axum::http::Method;
use domain::KeyRole;
use orchestrator::auth::permission::{Need, ROUTES, permits};
use serde_json::{Value, json};

use crate::{
    seed::{self, Ended},
    world::{Answer, OPERATOR, Tenant, World},
};

/// A route's path with real names of the tenant's, so that only the walls stand in the way.
struct Names {
    account: String,
    values: Vec<(&'static str, String)>,
}

impl Names {
    fn path(&self, pattern: &str) -> String {
        let mut path = pattern.replace("{account}", &self.account);
        for (name, value) in &self.values {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        assert!(!path.contains('{'), "no value for a parameter of {path}");
        path
    }
}

/// One of everything.
async fn furnish(world: &World, tenant: &Tenant) -> Names {
    let agent = world.agent(tenant, "coder").await;
    world.task(tenant, "T", &["coder"]).await;
    let session = seed::session(world, tenant, "T", &agent, 1, true).await;
    let turn = seed::turn(world, tenant, session, 1, Ended::default()).await;
    seed::queued(world, tenant, session, "n-1").await;
    let letter = seed::letter(
        world,
        &tenant.id,
        &format!("signalbox.notification.{}.T", tenant.id),
        "{}",
        json!({}),
    )
    .await;
    let key = world.get(&tenant.admin, &tenant.path("/keys")).await.body["items"][1]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    Names {
        account: tenant.id.clone(),
        values: vec![
            ("agent", agent),
            ("task", "T".to_owned()),
            ("session", session.to_string()),
            ("turn", turn.to_string()),
            ("notification", "n-1".to_owned()),
            ("letter", letter.to_string()),
            ("key", key),
        ],
    }
}

/// The same request id, so that answers can be compared whole.
async fn send(world: &World, method: &str, path: &str, token: Option<&str>, body: Option<&Value>) -> Answer {
    let mut call = world
        .call(method.parse().unwrap(), path)
        .header("x-request-id", "the-same");
    if let Some(token) = token {
        call = call.token(token);
    }
    if let Some(body) = body {
        call = call.json(body);
    }
    call.send().await
}

#[tokio::test]
async fn another_account_and_no_account_are_the_same_on_every_route() {
    let world = World::new().await;
    let (ours, theirs) = (world.tenant("ours").await, world.tenant("theirs").await);
    let names = furnish(&world, &theirs).await;
    let missing = Names {
        account: "missing".to_owned(),
        values: names.values.clone(),
    };
    let impossible = Names {
        account: "NO_SUCH!".to_owned(),
        values: names.values.clone(),
    };
    let before = world.sent().await.len();
    for (method, pattern, _) in ROUTES.iter().filter(|(_, pattern, _)| pattern.contains("{account}")) {
        // a good body and a bad one: neither may be looked at
        for body in [None, Some(json!({"nonsense": true}))] {
            for token in [&ours.admin, &ours.member, &ours.service, &ours.publisher, &ours.gateway] {
                let crossing = send(&world, method, &names.path(pattern), Some(token), body.as_ref()).await;
                let nowhere = send(&world, method, &missing.path(pattern), Some(token), body.as_ref()).await;
                let never = send(&world, method, &impossible.path(pattern), Some(token), body.as_ref()).await;
                crossing.is_problem(404, "not_found", "");
                assert_eq!(crossing.body, nowhere.body, "{method} {pattern}");
                assert_eq!(crossing.body, never.body, "{method} {pattern}");
                assert_eq!(crossing.headers, nowhere.headers, "{method} {pattern}");
            }
        }
        let operator = send(&world, method, &missing.path(pattern), Some(OPERATOR), Some(&json!({}))).await;
        operator.is_problem(404, "not_found", "");
    }
    assert_eq!(world.sent().await.len(), before, "nothing was done");
}

/// Ids of another account's things, asked for in one's own.
#[tokio::test]
async fn what_is_theirs_is_not_found_in_ours() {
    let world = World::new().await;
    let (ours, theirs) = (world.tenant("ours").await, world.tenant("theirs").await);
    let names = furnish(&world, &theirs).await;
    let mixed = Names {
        account: "ours".to_owned(),
        values: names.values.clone(),
    };
    let before = world.sent().await.len();
    for (method, pattern, _) in ROUTES {
        if pattern.matches('{').count() < 2 {
            continue;
        }
        let body = match (*method, *pattern) {
            ("POST", "/api/orgs/{account}/tasks/{task}/messages") => Some(json!({"body": "b"})),
            ("PATCH", _) => Some(json!({})),
            _ => None,
        };
        let asked = send(&world, method, &mixed.path(pattern), Some(&ours.admin), body.as_ref()).await;
        asked.is_problem(404, "not_found", "");
    }
    assert_eq!(world.sent().await.len(), before, "nothing was done");
    for (list, found) in [
        ("/sessions", 0),
        ("/notifications", 0),
        ("/tasks", 0),
        ("/agents", 0),
        ("/dead-letters", 0),
        ("/keys", 5),
    ] {
        assert_eq!(
            world.get(&ours.admin, &ours.path(list)).await.column("id").len(),
            found,
            "{list}"
        );
    }
    let filtered = format!("/sessions?agent={}", names.path("{agent}"));
    assert!(
        world
            .get(&ours.admin, &ours.path(&filtered))
            .await
            .column("id")
            .is_empty()
    );
    // their agent cannot be assigned to our task
    let task = json!({"title": "t", "assignees": [names.path("{agent}")]});
    world
        .post(&ours.admin, &ours.path("/tasks"), task)
        .await
        .is_problem(400, "unknown_agent", "");
}

#[tokio::test]
async fn each_role_may_do_on_every_route_what_the_table_says() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let names = furnish(&world, &tenant).await;
    for (method, pattern, need) in ROUTES {
        let path = names.path(pattern);
        for (role, token) in [
            (KeyRole::Gateway, &tenant.gateway),
            (KeyRole::Publisher, &tenant.publisher),
            (KeyRole::Service, &tenant.service),
            (KeyRole::Member, &tenant.member),
        ] {
            // A body that is refused by whoever reads it: 400 says that the guard let the request in.
            let answer = send(&world, method, &path, Some(token), Some(&json!({"nonsense": true}))).await;
            let let_in = answer.status != 403 && answer.status != 401;
            assert_eq!(let_in, permits(role, *need), "{role} {method} {pattern}: {answer:?}");
            if !let_in {
                answer.is_problem(403, "forbidden", role.as_str());
            }
        }
        if *need == Need::Operate {
            send(&world, method, &path, Some(&tenant.admin), None)
                .await
                .is_problem(403, "forbidden", "admin");
        }
    }
}

#[tokio::test]
async fn nobody_comes_in_without_a_good_key() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let names = furnish(&world, &tenant).await;
    let mut wrong_secret = tenant.admin.clone();
    // a key of the right form whose secret is another's
    let other = world.tenant("other").await;
    let parts: Vec<&str> = tenant.admin.split('_').collect();
    let others: Vec<&str> = other.admin.split('_').collect();
    let body = format!("{}_{}_{}_{}", parts[0], parts[1], parts[2], others[3]);
    wrong_secret.clear();
    wrong_secret.push_str(&format!("{body}_{:08x}", crc32fast::hash(body.as_bytes())));
    let unknown = domain::ApiKey::from_random(&domain::AccountId::parse("nowhere").unwrap(), [1; 40]);
    for (method, pattern, _) in ROUTES {
        let path = names.path(pattern);
        let first = send(&world, method, &path, None, None).await;
        first.is_problem(401, "unauthorized", "");
        assert_eq!(first.headers["www-authenticate"], "Bearer");
        for token in ["", "nonsense", &OPERATOR[1..], &wrong_secret, unknown.expose()] {
            let answer = send(&world, method, &path, Some(token), None).await;
            assert_eq!(
                (answer.status.as_u16(), &answer.body),
                (401, &first.body),
                "{method} {pattern} {token}"
            );
        }
    }
    let basic = world
        .call(Method::GET, &tenant.path("/tasks"))
        .header("authorization", "Basic YTpi")
        .send()
        .await;
    basic.is_problem(401, "unauthorized", "");
}

/// Of two credentials, a proxy in front may have looked at the other one.
#[tokio::test]
async fn two_credentials_are_none() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let names = furnish(&world, &tenant).await;
    for (method, pattern, _) in ROUTES {
        let path = names.path(pattern);
        let bearer = |token: &str| format!("Bearer {token}");
        for second in [&tenant.admin, &tenant.member, "nonsense", ""] {
            let call = world.call(method.parse().unwrap(), &path).token(&tenant.admin);
            let twice = call.header("authorization", &bearer(second)).send().await;
            twice.is_problem(400, "invalid", "authorization once");
        }
        let joined = format!("{}, {}", bearer(&tenant.admin), bearer(&tenant.member));
        let joined = world
            .call(method.parse().unwrap(), &path)
            .header("authorization", &joined);
        joined.send().await.is_problem(400, "invalid", "one credential");
    }
    let body = json!({"title": "t"});
    let twice = world.call(Method::POST, &tenant.path("/tasks")).token(&tenant.member);
    let twice = twice
        .header("idempotency-key", "a")
        .header("idempotency-key", "b")
        .json(&body);
    twice.send().await.is_problem(400, "invalid", "idempotency-key once");
}

#[tokio::test]
async fn without_an_operator_token_nobody_is_the_operator() {
    let world = World::with(|settings| settings.operator_token = None).await;
    for token in ["", OPERATOR] {
        send(&world, "GET", "/api/accounts", Some(token), None)
            .await
            .is_problem(401, "unauthorized", "");
    }
}
