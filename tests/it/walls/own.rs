//! An account's use of its own things over HTTP: every route, and every tool by its own route.

use contracts::tools::submit_plan;
use serde_json::{Value, json};
use testkit::{
    Tenant,
    tools::{arguments, in_order, named},
};

use crate::crossing::{
    attempt::{Door, Request},
    generator::Ids,
    routes::{ROUTES, Route, kind_of, kind_within, replace_parameter},
};

/// In the query of a list: all that comes after its first page is read, too.
pub(crate) const PAGED: &str = "limit=1";

fn request(method: &'static str, path: String, token: &str, body: Option<&Value>) -> Request {
    Request {
        door: Door::Api,
        method,
        path,
        token: token.to_owned(),
        headers: Vec::new(),
        body: body.map(Value::to_string),
    }
}

/// A path for each thing that its last parameter can name, within each thing that the one before can name.
fn paths_of(route: &'static Route, tenant: &Tenant, ids: &Ids) -> Vec<String> {
    let mut paths = vec![route.path.replace("{account}", &tenant.account)];
    for kind in [kind_within(route.path), kind_of(route.path)].into_iter().flatten() {
        let ids = ids.get(kind).unwrap_or_else(|| panic!("tenant.sql has no {kind}"));
        let named = |path: &String| ids.iter().map(|id| replace_parameter(path, id)).collect::<Vec<_>>();
        paths = paths.iter().flat_map(named).collect();
    }
    paths
}

fn routes_of(method: &str) -> impl Iterator<Item = &'static Route> {
    let routes = ROUTES.iter().filter(|route| route.path.contains("{account}"));
    routes.filter(move |route| route.method == method)
}

/// Reads every readable route.
pub(crate) fn reading(tenant: &Tenant, ids: &Ids) -> Vec<Request> {
    let base = format!("/api/orgs/{}", tenant.account);
    let mut paths = Vec::new();
    for route in routes_of("GET") {
        let is_list = route.queries.iter().any(|query| query.kind == "cursor");
        for path in paths_of(route, tenant, ids) {
            if is_list {
                paths.push(format!("{path}?{PAGED}"));
            }
            paths.push(path);
        }
    }
    let more = [
        "/agents/coder",
        "/tasks?status=in_progress",
        "/notifications?task=LIVE-1&agent=coder&state=delivered",
        "/notifications/accepted",
        "/notifications/both",
        "/notifications/nobodys",
        "/sessions?task=LIVE-1&agent=coder&active=true",
        "/audit/isolation?task=LIVE-1&from=2020-01-01T00:00:00Z",
        "/audit/isolation?task=CHAT&until=2120-01-01T00:00:00Z",
    ];
    paths.extend(more.map(|path| format!("{base}{path}")));
    for session in &ids["session"] {
        let audit = format!("{base}/audit/isolation?session={session}");
        paths.push(format!("{audit}&{PAGED}"));
        paths.push(audit);
    }
    for turn in &ids["turn"] {
        paths.push(format!("{base}/audit/isolation?turn={turn}"));
        paths.push(format!("{base}/turns/{turn}/diff?with={turn}&text=true"));
    }
    let mut requests: Vec<Request> = paths
        .into_iter()
        .map(|path| request("GET", path, &tenant.keys["admin"], None))
        .collect();
    // Its own, and another account's.
    for id in ["published", "posted"] {
        let path = format!("{base}/notifications/{id}");
        requests.push(request("GET", path, &tenant.keys["publisher"], None));
    }
    requests
}

/// One request for each thing of the route, with a body that is valid by its document.
fn requests_of<'a>(route: &'static Route, tenant: &'a Tenant, ids: &Ids) -> impl Iterator<Item = Request> + use<'a> {
    let paths = paths_of(route, tenant, ids).into_iter();
    paths.map(|path| request(route.method, path, &tenant.keys["admin"], route.good.as_ref()))
}

/// Writes of routes that these requests do not cause.
fn unwritten(tenant: &Tenant, ids: &Ids, written: &[Request]) -> Vec<Request> {
    let is_written = |route: &Route| {
        let mut written = written.iter();
        written.any(|request| request.method == route.method && route.is_at(&request.path))
    };
    let routes = ["POST", "PUT", "PATCH"].into_iter().flat_map(routes_of);
    let routes = routes.filter(|route| !is_written(route));
    routes.flat_map(|route| requests_of(route, tenant, ids)).collect()
}

/// Removes everything that can be removed.
pub(crate) fn removing(tenant: &Tenant, ids: &Ids) -> Vec<Request> {
    let routes = routes_of("DELETE");
    routes.flat_map(|route| requests_of(route, tenant, ids)).collect()
}

/// A look at what a sign-in link opens, and its use.
pub(crate) fn opening(path: &str) -> [Request; 2] {
    ["GET", "POST"].map(|method| request(method, path.to_owned(), "", None))
}

/// What is a person's own, at last the key that asks.
pub(crate) fn own(token: &str, key: &str, memory: &str) -> Vec<Request> {
    let of = |method, path: &str, body: Option<&Value>| request(method, path.to_owned(), token, body);
    vec![
        of("GET", "/api/me", None),
        of(
            "PATCH",
            "/api/me",
            Some(&json!({"name": "n", "time_zone": "Europe/Berlin"})),
        ),
        of("POST", "/api/me/keys", Some(&json!({"name": "n"}))),
        of("GET", "/api/me/keys?limit=1", None),
        // Of more than are kept, one goes.
        of("POST", "/api/me/memories", Some(&json!({"content": "n", "key": "n"}))),
        of(
            "POST",
            "/api/me/memories/session",
            Some(&json!({"content": "n", "repo": "acme/n"})),
        ),
        of("GET", "/api/me/memories?query=n", None),
        of("GET", "/api/me/memories/session?repo=acme/n", None),
        of("DELETE", &format!("/api/me/memories/{memory}"), None),
        of("DELETE", &format!("/api/me/keys/{key}"), None),
    ]
}

/// A file that is there, a new one, and a new one once more.
fn uploads(tenant: &Tenant, base: &str) -> Vec<Request> {
    let of = |content: &str, key: &str| {
        let path = format!("{base}/tasks/LIVE-1/artifacts?name=n");
        let mut request = request("POST", path, &tenant.keys["admin"], None);
        request.body = Some(content.to_owned());
        request.headers.push(("idempotency-key", format!("upload-{key}")));
        request
    };
    let secret = testkit::tenant::secret(&tenant.account);
    vec![of(&format!("{secret} 1"), "1"), of("another", "2"), of("another", "2")]
}

/// Changes rows with the same name in every account.
pub(crate) fn writing(tenant: &Tenant, ids: &Ids) -> Vec<Request> {
    let base = format!("/api/orgs/{}", tenant.account);
    let of_account = tenant.account.to_uppercase();
    let letter = ids["letter"].first().expect("a letter");
    let key = tenant.keys["member"].split('_').nth(2).expect("its id");
    let mut requests: Vec<Request> = [
        (
            "PATCH",
            "",
            json!({"name": "n", "coordinator_task": "CHAT", "turns_in_flight_max": 8}),
        ),
        ("PATCH", "/agents/coder", json!({"name": "n", "role": "r"})),
        (
            "PATCH",
            "/tasks/LIVE-1",
            json!({"title": "t", "assignees": ["coder"], "task_context": "optional"}),
        ),
        ("POST", "/tasks", json!({"title": "t", "assignees": ["coder"]})),
        ("POST", &format!("/tasks/{of_account}-3/messages"), json!({"body": "b"})),
        ("POST", "/keys", json!({"name": "n", "role": "service"})),
        ("POST", "/agents", json!({"slug": "tester", "name": "n"})),
        (
            "POST",
            "/notifications",
            json!({"id": "posted", "task": "LIVE-1", "agent": "coder", "body": "b"}),
        ),
        (
            "POST",
            "/notifications",
            json!({"id": "posted", "task": "LIVE-1", "agent": "coder", "body": "b"}),
        ),
        ("POST", &format!("/dead-letters/{letter}/redrive"), json!({})),
        ("DELETE", &format!("/keys/{key}"), Value::Null),
    ]
    .into_iter()
    .map(|(method, path, body)| {
        let body = Some(&body).filter(|body| !body.is_null());
        let mut request = request(method, format!("{base}{path}"), &tenant.keys["admin"], body);
        if method == "POST" {
            request.headers.push(("idempotency-key", format!("{}-own", path.len())));
        }
        request
    })
    .collect();
    requests.extend(uploads(tenant, &base));
    requests.extend(unwritten(tenant, ids, &requests));
    let published = json!({"id": "published", "task": "LIVE-1", "agent": "coder", "body": "b"});
    let path = format!("{base}/notifications");
    requests.push(request("POST", path, &tenant.keys["publisher"], Some(&published)));
    let sessions = &ids["session_key"];
    let session = sessions.iter().find(|key| key.starts_with("task:live-1:"));
    let id = |_: &str, of| named(of, "LIVE-1", "coder");
    // A plan would keep the task: it has a step of its own.
    let tools = in_order().into_iter().filter(|tool| tool.name != submit_plan::NAME);
    let calls = tools.map(|tool| {
        let path = format!("/agent/tools/{}", tool.name);
        (path, Some(arguments(&tool, |_| false, id, "review")))
    });
    let mut upload = request(
        "POST",
        "/agent/artifacts?name=n".to_owned(),
        &tenant.keys["gateway"],
        None,
    );
    upload.door = Door::Agent;
    upload.body = Some("of an agent".to_owned());
    let own = session.expect("a session on it").clone();
    upload.headers.push(("x-openclaw-session-key", own));
    requests.push(upload);
    for (path, body) in [("/agent/tools".to_owned(), None)].into_iter().chain(calls) {
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut request = request(method, path, &tenant.keys["gateway"], body.as_ref());
        request.door = Door::Agent;
        let session = session.expect("a session on it").clone();
        request.headers.push(("x-openclaw-session-key", session));
        if method == "POST" {
            // Once more: the first result is found.
            request.headers.push(("idempotency-key", request.path.clone()));
            requests.push(request.clone());
        }
        requests.push(request);
    }
    requests
}
