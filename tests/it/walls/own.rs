//! What an account does with its own things over HTTP: every route, and tools by their own routes.

use serde_json::{Value, json};

use crate::crossing::{
    attempt::{Door, Request},
    generator::Ids,
    tenant::Tenant,
};

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

/// Reads everything there is to read.
pub(crate) fn reading(tenant: &Tenant, ids: &Ids) -> Vec<Request> {
    let base = format!("/api/orgs/{}", tenant.account);
    let mut paths: Vec<String> = [
        "",
        "/agents",
        "/agents/coder",
        "/tasks",
        "/tasks?status=in_progress",
        "/tasks/LIVE-1",
        "/tasks/LIVE-1/messages",
        "/tasks/LIVE-1/activities",
        "/keys",
        "/notifications",
        "/notifications?task=LIVE-1&agent=coder&state=delivered",
        "/notifications/n-1",
        "/notifications/accepted",
        "/notifications/both",
        "/notifications/nobodys",
        "/sessions",
        "/sessions?task=LIVE-1&agent=coder&state=active",
        "/dead-letters",
    ]
    .map(str::to_owned)
    .into();
    for (list, kind) in [
        ("sessions", "session"),
        ("turns", "turn"),
        ("dead-letters", "letter"),
        ("agents", "agent"),
    ] {
        paths.extend(ids[kind].iter().map(|id| format!("/{list}/{id}")));
    }
    paths.extend(
        ids["session"]
            .iter()
            .map(|session| format!("/sessions/{session}/turns")),
    );
    paths.extend(ids["turn"].iter().map(|turn| format!("/turns/{turn}/tool-calls")));
    // Second pages.
    for list in ["agents", "tasks", "keys", "notifications", "sessions", "dead-letters"] {
        paths.push(format!("/{list}?limit=1"));
    }
    paths.extend(ids["cursor"].iter().flat_map(|cursor| {
        ["agents", "tasks", "keys", "tasks/LIVE-1/messages", "dead-letters"]
            .map(|list| format!("/{list}?cursor={cursor}"))
    }));
    let mut requests: Vec<Request> = paths
        .into_iter()
        .map(|path| request("GET", format!("{base}{path}"), &tenant.keys["admin"], None))
        .collect();
    // Its own, and another's.
    for id in ["published", "posted"] {
        let path = format!("{base}/notifications/{id}");
        requests.push(request("GET", path, &tenant.keys["publisher"], None));
    }
    requests
}

/// Changes what has the same name in every account.
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
        ("PATCH", "/tasks/LIVE-1", json!({"title": "t", "assignees": ["coder"]})),
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
    let published = json!({"id": "published", "task": "LIVE-1", "agent": "coder", "body": "b"});
    let path = format!("{base}/notifications");
    requests.push(request("POST", path, &tenant.keys["publisher"], Some(&published)));
    let sessions = &ids["session_key"];
    let session = sessions.iter().find(|key| key.starts_with("task:live-1:"));
    for (path, body) in [
        ("/agent/tools", None),
        ("/agent/task-history", Some(json!({"task_id": "LIVE-1"}))),
        ("/agent/task-message", Some(json!({"task_id": "LIVE-1", "body": "b"}))),
        (
            "/agent/task-status",
            Some(json!({"task_id": "LIVE-1", "status": "review"})),
        ),
        (
            "/agent/response-request",
            Some(json!({"agents": ["coder"], "body": "b"})),
        ),
    ] {
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut request = request(method, path.to_owned(), &tenant.keys["gateway"], body.as_ref());
        request.door = Door::Agent;
        let session = session.expect("a session on it").clone();
        request.headers.push(("x-openclaw-session-key", session));
        requests.push(request);
    }
    requests
}
