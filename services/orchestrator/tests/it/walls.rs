//! Permissions: every route, every role, and two accounts that must not see each other.

use std::collections::{BTreeMap, BTreeSet};

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
    route::{Route, Scope},
    routes,
    routes::guarded,
};
use runtime::{Shutdown, http::Health, settings::HttpSettings};
use serde_json::{Value, json};

use testkit::{Tenant, rows};
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

/// A body that the route reads, where it would refuse none before it looks for what its path names.
fn body_of(method: &Method, pattern: &str) -> Option<Value> {
    match (method.as_str(), pattern) {
        ("POST", "/api/orgs/{account}/tasks/{task}/handover") => Some(json!({"from": "coder", "to": "reviewer"})),
        ("POST", "/api/orgs/{account}/tasks/{task}/messages") => Some(json!({"body": "b"})),
        ("POST", pattern) if pattern.ends_with("/reset") => Some(json!({"reason": "r"})),
        ("POST", pattern) if pattern.ends_with("/artifacts") => Some(json!("a text")),
        ("PATCH", pattern) if pattern.contains("/queue/") => Some(json!({"revision": 1, "body": "b"})),
        ("POST", pattern) if pattern.ends_with("/promote") => Some(json!({"revision": "0.0.0"})),
        ("PUT", pattern) if pattern.ends_with("/queue/order") => Some(json!({"revision": "0.0.0", "items": ["n-1"]})),
        ("PUT", pattern) if pattern.ends_with("/context") => Some(json!({"body": "b"})),
        ("PUT", pattern) if pattern.ends_with("/files") => {
            Some(json!({"files": [{"filename": "A.md", "content": "a"}]}))
        }
        ("PUT", pattern) if pattern.ends_with("/personas/{persona}") || pattern.ends_with("/tasks/{task}") => {
            Some(json!({}))
        }
        ("PUT", pattern) if pattern.ends_with("/stages") => Some(json!({"stages": []})),
        ("PUT", pattern) if pattern.contains("/tool-policies/") => Some(json!({"revision": 1, "visible": true})),
        ("POST", pattern) if pattern.ends_with("/prompt") => Some(json!({"content": "c"})),
        ("PUT", pattern) if pattern.ends_with("/messages/read") || pattern.contains("/inbox/{mail}/") => {
            Some(json!({}))
        }
        ("POST", pattern) if pattern.ends_with("/{mail}/reply") => Some(json!({"content": "c"})),
        ("POST", pattern) if pattern.ends_with("/answer") => Some(json!({"text": "t"})),
        ("POST", pattern) if pattern.ends_with("/withdraw") => Some(json!({})),
        ("PATCH", _) => Some(json!({})),
        _ => None,
    }
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
        let body = body_of(&method, pattern);
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

/// Who asks.
#[derive(Clone, Copy, Debug)]
enum Who {
    Nobody,
    /// A key whose person is no member any more.
    Removed,
    Operator,
    /// A key of the account.
    Key(KeyRole),
    /// A person's own key; with what the key and the person's role leave of each other.
    Own(KeyRole),
    /// A key of another account.
    Foreign(KeyRole),
}

/// What the guard says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    In,
    Unauthorized,
    Forbidden,
    NotAPerson,
    /// As of an account that is not there.
    NotFound,
}

/// The table: what each route, by its need and scope, says to each of them.
fn expected(who: Who, need: Need, scope: Scope) -> Verdict {
    let refused = match need {
        Need::Person => Verdict::NotAPerson,
        _ => Verdict::Forbidden,
    };
    let is_in = match who {
        Who::Nobody | Who::Removed => return Verdict::Unauthorized,
        Who::Foreign(_) if scope == Scope::Account => return Verdict::NotFound,
        // It acts in no account of its own.
        Who::Operator => need != Need::Person && scope != Scope::Current,
        Who::Key(role) | Who::Foreign(role) => permits(role, need),
        Who::Own(role) => permits(role, need) || need == Need::Person,
    };
    if is_in { Verdict::In } else { refused }
}

fn verdict(answer: &Answer, account_is_own: bool) -> Verdict {
    // A handler may refuse what the guard lets in: then neither the role nor the account is the reason.
    let why = answer.body["detail"].as_str().unwrap_or_default();
    let is_by_role = why.starts_with("a key of role ") || why.starts_with("the operator has no account");
    match (answer.status.as_u16(), answer.body["code"].as_str()) {
        (401, Some("unauthorized")) => Verdict::Unauthorized,
        (403, Some("not_a_person")) => Verdict::NotAPerson,
        (403, Some("forbidden")) if is_by_role => Verdict::Forbidden,
        (404, Some("not_found")) if !account_is_own => Verdict::NotFound,
        _ => Verdict::In,
    }
}

/// A name of the same form that nothing has.
fn absent(name: &str) -> String {
    let other = |c: char| match c {
        '0'..='9' => char::from(b'0' + (b'9' - c as u8)),
        'a'..='f' => char::from(b'a' + (b'f' - c as u8)),
        other => other,
    };
    name.chars().map(other).collect()
}

#[tokio::test]
async fn every_route_says_to_everybody_what_the_table_says() {
    let world = World::new().await;
    let (tenant, names) = furnish(&world, "acme").await;
    let other = world.tenant("other").await;
    let owner = &world.test.owner;
    rows("member")
        .with("user_id", "gone")
        .set("removed_at", "now()")
        .insert(owner)
        .await;
    let own = async |role: &str, user: &str| tenant.own_key(owner, role, user).await;
    let key = |role: &str| tenant.keys[role].clone();
    use KeyRole::{Admin, Gateway, Member, Publisher, Service};
    let everybody = [
        (Who::Nobody, None),
        (Who::Removed, Some(own("admin", "gone").await)),
        (Who::Operator, Some(OPERATOR.to_owned())),
        (Who::Key(Admin), Some(key("admin"))),
        (Who::Key(Member), Some(key("member"))),
        (Who::Key(Service), Some(key("service"))),
        (Who::Key(Publisher), Some(key("publisher"))),
        (Who::Key(Gateway), Some(key("gateway"))),
        (Who::Own(Admin), Some(own("admin", "ann").await)),
        (Who::Own(Member), Some(own("member", "ann").await)),
        // A member's key does no more than the member.
        (Who::Own(Member), Some(own("admin", "acme-bob").await)),
        (Who::Own(Member), Some(own("member", "acme-bob").await)),
        (Who::Foreign(Admin), Some(other.admin.clone())),
        (Who::Foreign(Member), Some(other.member.clone())),
        (Who::Foreign(Service), Some(other.service.clone())),
        (Who::Foreign(Publisher), Some(other.publisher.clone())),
        (Who::Foreign(Gateway), Some(other.gateway.clone())),
    ];
    let unused = Names {
        account: names.account.clone(),
        values: names.values.iter().map(|(kind, name)| (*kind, absent(name))).collect(),
    };
    let mut faults = Vec::new();
    for (method, pattern, need) in listed() {
        // Only a reading request names what is there: the table is about the guard, and nothing may be removed meanwhile.
        let path = if method.is_safe() {
            names.path(pattern)
        } else {
            unused.path(pattern)
        };
        let scope = Scope::of(pattern, need);
        for (who, token) in &everybody {
            // A body that the handler refuses.
            let body = json!({"nonsense": true});
            let answer = send(&world, &method, &path, token.as_deref(), Some(&body)).await;
            let found = verdict(&answer, !matches!(who, Who::Foreign(_)));
            // In their own account they name what is not there.
            let found = match (who, scope, found) {
                (Who::Foreign(_), Scope::Current, Verdict::NotFound) => Verdict::In,
                (_, _, found) => found,
            };
            if found != expected(*who, need, scope) {
                let told = format!(
                    "{method} {pattern} ({need:?}) says {found:?} to {who:?}: {} {}",
                    answer.status, answer.body
                );
                faults.push(told);
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The table has every route of the document, and nothing else is served: what has no need is closed.
#[test]
fn every_route_of_the_document_is_in_the_table() {
    let document = orchestrator::openapi(None);
    let paths = document["paths"].as_object().unwrap().iter();
    let documented: BTreeSet<(String, String)> = paths
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().keys();
            methods.map(move |method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let table: BTreeSet<(String, String)> = listed()
        .into_iter()
        .map(|(method, path, _)| (method.to_string(), path.to_owned()))
        .collect();
    assert_eq!(documented, table);
}

/// What is another person's own and what is not there have the same answer, byte for byte, on every route that could name it.
#[tokio::test]
async fn what_is_hidden_and_what_is_absent_are_the_same() {
    let world = World::new().await;
    let (tenant, names) = furnish(&world, "acme").await;
    world
        .execute("update account set orchestrators_visible_to_admins = false")
        .await;
    let owner = &world.test.owner;
    let hidden = |kind: &'static str| match kind {
        "notification" => "hidden-1".to_owned(),
        _ => "01998e1c-1111-7000-8000-111111111111".to_owned(),
    };
    let session = rows("session").with("id", hidden("session")).with("user_id", "ann");
    session
        .with("key", "orchestrator:acme:ann:v9")
        .set("closed_at", "now()")
        .insert(owner)
        .await;
    let of = format!("session s where s.id = '{}'", hidden("session"));
    let turn = rows("turn").with("id", hidden("turn")).with("user_id", "ann");
    turn.from(&of).insert(owner).await;
    let item = rows("notification")
        .with("id", hidden("notification"))
        .with("user_id", "ann");
    item.with("state", "delivered").from(&of).insert(owner).await;
    let letter = rows("dead_letter").with("id", hidden("letter")).with("for_user", "ann");
    letter.insert(owner).await;
    let mail = rows("mail").with("id", hidden("mail")).with("to_user", "ann");
    mail.insert(owner).await;
    let memory = rows("memory").with("id", hidden("memory"));
    memory.with("owner", "user:ann").insert(owner).await;
    let question = rows("question").with("id", hidden("question"));
    let question = question.with("orchestrator", "user:ann");
    question.from(&of).insert(owner).await;
    let persona = rows("persona").with("id", hidden("persona"));
    persona.with("visibility", "private").insert(owner).await;
    let of = format!("persona p where p.id = '{}'", hidden("persona"));
    rows("persona_version").from(&of).insert(owner).await;

    let mut asked = BTreeMap::new();
    for (method, pattern, _) in listed() {
        for kind in [
            "session",
            "turn",
            "notification",
            "letter",
            "mail",
            "memory",
            "question",
            "persona",
        ] {
            if !pattern.contains(&format!("{{{kind}}}")) {
                continue;
            }
            let path = |id: String| {
                let values = [(kind, id)].into_iter().chain(names.values.iter().cloned()).collect();
                let account = names.account.clone();
                Names { account, values }.path(pattern)
            };
            // Admins see private personas, whatever the account says of orchestrators.
            let who = ["person", "member", "admin"];
            let who = who.iter().filter(|who| (kind, **who) != ("persona", "admin"));
            for token in who.map(|who| &tenant.keys[who]) {
                let ask = async |id: String| {
                    let body = body_of(&method, pattern);
                    let answer = send(&world, &method, &path(id.clone()), Some(token), body.as_ref()).await;
                    (
                        answer.status,
                        answer.body.to_string().replace(&id, "ID"),
                        answer.headers,
                    )
                };
                let (found, none) = (ask(hidden(kind)).await, ask(absent(&hidden(kind))).await);
                assert_eq!(found, none, "{method} {pattern}");
                *asked.entry(kind).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(asked.len(), 8, "{asked:?}");
    assert!(asked.values().sum::<usize>() > 100, "{asked:?}");
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
