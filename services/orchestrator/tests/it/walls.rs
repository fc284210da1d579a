//! Permissions: every route, every role, and two accounts that must not see each other.

use std::collections::BTreeSet;

use axum::{
    Json,
    body::{Body, to_bytes},
    extract::State,
    http::{Method, Request},
};
use domain::KeyRole;
use orchestrator::{
    App,
    auth::Access,
    error::ApiError,
    permission::{Need, permits},
    route::Route,
    routes,
    routes::guarded,
};
use runtime::{Shutdown, http::Health, settings::HttpSettings};
use serde_json::{Value, json};

use testkit::Tenant;
use tower::ServiceExt;

use crate::world::{Answer, OPERATOR, World};

/// A route's path with the tenant's real names, so that only the walls can refuse it.
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

/// An account with one object of each kind.
async fn furnish(world: &World, account: &str) -> (Tenant, Names) {
    let tenant = Tenant::furnish(&world.test.owner, account).await;
    let ids = tenant.ids(&world.test.owner).await;
    let first = |(kind, ids): (&'static str, BTreeSet<String>)| (kind, ids.into_iter().next().unwrap());
    let names = Names {
        account: account.to_owned(),
        values: ids
            .into_iter()
            .filter(|(kind, _)| *kind != "account")
            .map(first)
            .chain([("name", "corp".to_owned())])
            .collect(),
    };
    (tenant, names)
}

/// Every route: method, pattern, need.
fn listed() -> Vec<(Method, &'static str, Need)> {
    let parts = |route: Route| (route.http.method, route.http.path, route.need);
    routes().into_iter().map(parts).collect()
}

/// A fixed request id, so that answers can be compared whole.
async fn send(world: &World, method: &Method, path: &str, token: Option<&str>, body: Option<&Value>) -> Answer {
    let mut call = world.call(method.clone(), path).header("x-request-id", "the-same");
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
    let ours = world.tenant("ours").await;
    let (_, names) = furnish(&world, "theirs").await;
    // Names of one length, as the answer repeats them.
    let missing = Names {
        account: "absent".to_owned(),
        values: names.values.clone(),
    };
    let impossible = Names {
        account: "ABSEN!".to_owned(),
        values: names.values.clone(),
    };
    let before = world.sent().await.len();
    for (method, pattern, _) in listed()
        .into_iter()
        .filter(|(_, pattern, _)| pattern.contains("{account}"))
    {
        // a valid body and an invalid one: neither may be read
        for body in [None, Some(json!({"nonsense": true}))] {
            for token in [&ours.admin, &ours.member, &ours.service, &ours.publisher, &ours.gateway] {
                // The answer names the path that was asked for, and says nothing else of it.
                let ask = async |names: &Names| {
                    let path = names.path(pattern);
                    let answer = send(&world, &method, &path, Some(token), body.as_ref()).await;
                    let body = answer.body.to_string().replace(&path, "PATH");
                    (answer, body)
                };
                let (crossing, body_of_crossing) = ask(&names).await;
                let (nowhere, body_of_nowhere) = ask(&missing).await;
                let (_, body_of_never) = ask(&impossible).await;
                crossing.is_problem(404, "not_found", "");
                assert_eq!(body_of_crossing, body_of_nowhere, "{method} {pattern}");
                assert_eq!(body_of_crossing, body_of_never, "{method} {pattern}");
                assert_eq!(crossing.headers, nowhere.headers, "{method} {pattern}");
            }
        }
        let operator = send(
            &world,
            &method,
            &missing.path(pattern),
            Some(OPERATOR),
            Some(&json!({})),
        )
        .await;
        operator.is_problem(404, "not_found", "");
    }
    assert_eq!(world.sent().await.len(), before, "nothing was done");
}

/// Requests in one's own account with ids of another account's objects.
#[tokio::test]
async fn what_is_theirs_is_not_found_in_ours() {
    let world = World::new().await;
    let ours = world.tenant("ours").await;
    let (_, names) = furnish(&world, "theirs").await;
    let mixed = Names {
        account: "ours".to_owned(),
        values: names.values.clone(),
    };
    let before = world.sent().await.len();
    for (method, pattern, _) in listed() {
        if pattern.matches('{').count() < 2 {
            continue;
        }
        let body = match (method.as_str(), pattern) {
            ("POST", "/api/orgs/{account}/tasks/{task}/handover") => Some(json!({"from": "coder", "to": "reviewer"})),
            ("POST", "/api/orgs/{account}/tasks/{task}/messages") => Some(json!({"body": "b"})),
            ("POST", pattern) if pattern.ends_with("/reset") => Some(json!({"reason": "r"})),
            ("POST", pattern) if pattern.ends_with("/artifacts") => Some(json!("a text")),
            ("PATCH", pattern) if pattern.contains("/queue/") => Some(json!({"revision": 1, "body": "b"})),
            ("POST", pattern) if pattern.ends_with("/promote") => Some(json!({"revision": "0.0.0"})),
            ("PUT", pattern) if pattern.ends_with("/queue/order") => {
                Some(json!({"revision": "0.0.0", "items": ["n-1"]}))
            }
            ("PUT", pattern) if pattern.ends_with("/context") => Some(json!({"body": "b"})),
            ("PUT", pattern) if pattern.ends_with("/files") => {
                Some(json!({"files": [{"filename": "A.md", "content": "a"}]}))
            }
            ("PUT", pattern) if pattern.ends_with("/personas/{persona}") || pattern.ends_with("/tasks/{task}") => {
                Some(json!({}))
            }
            ("PUT", pattern) if pattern.ends_with("/stages") => Some(json!({"stages": []})),
            ("PUT", pattern) if pattern.contains("/tool-policies/") => Some(json!({"revision": 1, "visible": true})),
            ("PATCH", _) => Some(json!({})),
            _ => None,
        };
        let is_upload = method == "POST" && pattern.ends_with("/artifacts");
        let query = match pattern {
            pattern if pattern.ends_with("/diff") => "?with=01998e1c-0000-7000-8000-000000000000",
            _ if is_upload => "?name=a.txt",
            _ => "",
        };
        let path = mixed.path(pattern) + query;
        let asked = send(&world, &method, &path, Some(&ours.admin), body.as_ref()).await;
        assert_eq!(asked.status, 404, "{method} {path}: {}", asked.body);
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
    // another account's agent cannot be assigned to our task
    let task = json!({"title": "t", "assignees": [names.path("{agent}")]});
    world
        .post(&ours.admin, &ours.path("/tasks"), task)
        .await
        .is_problem(400, "unknown_agent", "");
}

#[tokio::test]
async fn each_role_may_do_on_every_route_what_the_table_says() {
    let world = World::new().await;
    let (tenant, names) = furnish(&world, "acme").await;
    for (method, pattern, need) in listed() {
        // The first key of the account may be the person's own.
        let path = names.path(&pattern.replace("/api/me/keys/{key}", "/api/me/keys/0000000000000000"));
        for (role, token, is_person) in [
            (KeyRole::Gateway, &tenant.keys["gateway"], false),
            (KeyRole::Publisher, &tenant.keys["publisher"], false),
            (KeyRole::Service, &tenant.keys["service"], false),
            (KeyRole::Member, &tenant.keys["member"], false),
            (KeyRole::Member, &tenant.keys["person"], true),
        ] {
            // A body that the handler refuses: 400 shows that the guard admitted the request.
            let answer = send(&world, &method, &path, Some(token), Some(&json!({"nonsense": true}))).await;
            // A handler may refuse what the role lets in: then the role is not the reason.
            let why = answer.body["detail"].as_str().unwrap_or_default();
            let is_by_role =
                answer.status == 403 && (why.contains(role.as_str()) || answer.body["code"] == "not_a_person");
            let let_in = answer.status != 401 && !is_by_role;
            let expected = permits(role, need) || (is_person && need == Need::Person);
            assert_eq!(let_in, expected, "{role} {is_person} {method} {pattern}: {answer:?}");
            if !let_in && need == Need::Person {
                answer.is_problem(403, "not_a_person", "");
            } else if !let_in {
                answer.is_problem(403, "forbidden", role.as_str());
            }
        }
        if need == Need::Operate {
            send(&world, &method, &path, Some(&tenant.keys["admin"]), None)
                .await
                .is_problem(403, "forbidden", "admin");
        }
    }
}

#[tokio::test]
async fn nobody_comes_in_without_a_good_key() {
    let world = World::new().await;
    let (tenant, names) = furnish(&world, "acme").await;
    let mut wrong_secret = tenant.keys["admin"].clone();
    // a key of the right form with another key's secret
    let other = world.tenant("other").await;
    let parts: Vec<&str> = tenant.keys["admin"].split('_').collect();
    let others: Vec<&str> = other.admin.split('_').collect();
    let body = format!("{}_{}_{}_{}", parts[0], parts[1], parts[2], others[3]);
    wrong_secret.clear();
    wrong_secret.push_str(&format!("{body}_{:08x}", crc32fast::hash(body.as_bytes())));
    let unknown = domain::ApiKey::from_random(&domain::AccountId::parse("nowhere").unwrap(), [1; 40]);
    for (method, pattern, _) in listed() {
        let path = names.path(pattern);
        let first = send(&world, &method, &path, None, None).await;
        first.is_problem(401, "unauthorized", "");
        assert_eq!(first.headers["www-authenticate"], "Bearer");
        for token in ["", "nonsense", &OPERATOR[1..], &wrong_secret, unknown.expose()] {
            let answer = send(&world, &method, &path, Some(token), None).await;
            assert_eq!(
                (answer.status.as_u16(), &answer.body),
                (401, &first.body),
                "{method} {pattern} {token}"
            );
        }
    }
    let basic = world
        .call(Method::GET, &names.path("/api/orgs/{account}/tasks"))
        .header("authorization", "Basic YTpi")
        .send()
        .await;
    basic.is_problem(401, "unauthorized", "");
}

/// With two credentials, a proxy in front may have checked the other one.
#[tokio::test]
async fn two_credentials_are_none() {
    let world = World::new().await;
    let (tenant, names) = furnish(&world, "acme").await;
    for (method, pattern, _) in listed() {
        let path = names.path(pattern);
        let bearer = |token: &str| format!("Bearer {token}");
        for second in [&tenant.keys["admin"], &tenant.keys["member"], "nonsense", ""] {
            let call = world.call(method.clone(), &path).token(&tenant.keys["admin"]);
            let twice = call.header("authorization", &bearer(second)).send().await;
            twice.is_problem(400, "invalid", "authorization once");
        }
        let joined = format!("{}, {}", bearer(&tenant.keys["admin"]), bearer(&tenant.keys["member"]));
        let joined = world.call(method.clone(), &path).header("authorization", &joined);
        joined.send().await.is_problem(400, "invalid", "one credential");
    }
    let body = json!({"title": "t"});
    let twice = world
        .call(Method::POST, &names.path("/api/orgs/{account}/tasks"))
        .token(&tenant.keys["member"]);
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
        send(&world, &Method::GET, "/api/accounts", Some(token), None)
            .await
            .is_problem(401, "unauthorized", "");
    }
}

/// A route without an account in its path is about the account of the caller's key.
#[tokio::test]
async fn a_route_of_the_current_account_is_about_that_of_the_key() {
    async fn mine(_app: State<App>, access: Access) -> Result<Json<String>, ApiError> {
        Ok(Json(access.account.to_string()))
    }
    let world = World::new().await;
    let (ours, theirs) = (world.tenant("ours").await, world.tenant("theirs").await);
    let about = (("accounts", "mine"), "Whose key it is.");
    let route = Route::new((Method::GET, "/api/mine"), Need::Read, mine, about, &[]);
    let (limits, stop) = (HttpSettings::default(), Shutdown::new());
    let router = guarded(world.app.clone(), vec![route]);
    let router = runtime::http::router(router, Health::new(&limits, &stop), &limits, stop.clone());
    let ask = async |token: &str| {
        let request = Request::get("/api/mine").header("authorization", format!("Bearer {token}"));
        let answer = router
            .clone()
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), 1 << 16).await.unwrap();
        (status, serde_json::from_slice::<Value>(&body).unwrap())
    };
    assert_eq!(ask(&ours.member).await, (200, json!("ours")));
    assert_eq!(ask(&theirs.admin).await, (200, json!("theirs")));
    assert_eq!(ask(&ours.gateway).await.0, 403);
    assert_eq!(ask(OPERATOR).await.0, 403, "it has no account");
    assert_eq!(ask("nonsense").await.0, 401);
}
