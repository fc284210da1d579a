//! Every route that is served, and what can be said to it. A route without a row here fails the test: whoever adds one
//! says what of it could name something foreign.

use std::collections::BTreeSet;

use serde_json::Value;

/// What a request to a route may hold. `{any}` in a query or a body stands for any foreign name.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) queries: &'static [&'static str],
    pub(crate) bodies: &'static [&'static str],
}

const fn route(
    method: &'static str,
    path: &'static str,
    queries: &'static [&'static str],
    bodies: &'static [&'static str],
) -> Route {
    Route {
        method,
        path,
        queries,
        bodies,
    }
}

const PAGE: &[&str] = &["cursor={any}", "limit=1&cursor={any}", "account={any}"];
const FILTERS: &[&str] = &[
    "task={any}",
    "agent={any}",
    "cursor={any}",
    "task=LIVE-1&agent={any}",
    "account_id={any}",
];

/// Bodies are such that nothing comes of them in one's own account either: each names something that has to be there.
pub(crate) const ROUTES: &[Route] = &[
    route("POST", "/api/accounts", &[], &[r#"{"id": "{any}", "name": "n"}"#]),
    route("GET", "/api/accounts", PAGE, &[]),
    route("GET", "/api/dead-letters", PAGE, &[]),
    route("GET", "/api/dead-letters/{letter}", &[], &[]),
    route("POST", "/api/dead-letters/{letter}/redrive", &[], &["{}"]),
    route("GET", "/api/orgs/{account}", &["account={any}"], &[]),
    route(
        "PATCH",
        "/api/orgs/{account}",
        &[],
        &[r#"{"coordinator_task": "{any}"}"#],
    ),
    route(
        "POST",
        "/api/orgs/{account}/keys",
        &[],
        &[
            r#"{"name": "n", "role": "{any}"}"#,
            r#"{"name": "n", "role": "admin", "account": "{any}"}"#,
        ],
    ),
    route("GET", "/api/orgs/{account}/keys", PAGE, &[]),
    route("DELETE", "/api/orgs/{account}/keys/{key}", &[], &[]),
    route(
        "POST",
        "/api/orgs/{account}/agents",
        &[],
        &[
            r#"{"slug": "coder", "name": "{any}"}"#,
            r#"{"slug": "s", "name": "n", "account_id": "{any}"}"#,
        ],
    ),
    route("GET", "/api/orgs/{account}/agents", PAGE, &[]),
    route("GET", "/api/orgs/{account}/agents/{agent}", &["account={any}"], &[]),
    route(
        "PATCH",
        "/api/orgs/{account}/agents/{agent}",
        &[],
        &[r#"{"id": "{any}"}"#, r#"{"name": "taken over"}"#],
    ),
    route("DELETE", "/api/orgs/{account}/agents/{agent}", &[], &[]),
    route(
        "POST",
        "/api/orgs/{account}/tasks",
        &[],
        &[
            r#"{"title": "t", "assignees": ["{any}"]}"#,
            r#"{"title": "t", "id": "x", "assignees": ["coder", "{any}"]}"#,
        ],
    ),
    route("GET", "/api/orgs/{account}/tasks", PAGE, &[]),
    route("GET", "/api/orgs/{account}/tasks/{task}", &["account={any}"], &[]),
    route(
        "PATCH",
        "/api/orgs/{account}/tasks/{task}",
        &[],
        &[
            r#"{"assignees": ["{any}"]}"#,
            r#"{"status": "done", "assignees": ["{any}"]}"#,
        ],
    ),
    route("GET", "/api/orgs/{account}/tasks/{task}/messages", PAGE, &[]),
    route(
        "POST",
        "/api/orgs/{account}/tasks/{task}/messages",
        &[],
        &[r#"{"body": "b", "task": "{any}"}"#],
    ),
    route("GET", "/api/orgs/{account}/tasks/{task}/activities", PAGE, &[]),
    route(
        "POST",
        "/api/orgs/{account}/notifications",
        &[],
        &[r#"{"agent": "coder", "task": "{any}"}"#],
    ),
    route("GET", "/api/orgs/{account}/notifications", FILTERS, &[]),
    route("GET", "/api/orgs/{account}/notifications/{notification}", &[], &[]),
    route("GET", "/api/orgs/{account}/sessions", FILTERS, &[]),
    route("GET", "/api/orgs/{account}/sessions/{session}", &[], &[]),
    route("GET", "/api/orgs/{account}/sessions/{session}/turns", PAGE, &[]),
    route("GET", "/api/orgs/{account}/turns/{turn}", &[], &[]),
    route("GET", "/api/orgs/{account}/turns/{turn}/tool-calls", PAGE, &[]),
    route("GET", "/api/orgs/{account}/dead-letters", PAGE, &[]),
    route("GET", "/api/orgs/{account}/dead-letters/{letter}", &[], &[]),
    route(
        "POST",
        "/api/orgs/{account}/dead-letters/{letter}/redrive",
        &[],
        &["{}"],
    ),
];

/// The tools' routes, each with arguments that name one thing. The session key is in a header.
pub(crate) const AGENT_ROUTES: &[Route] = &[
    route("GET", "/agent/tools", &["session={any}"], &[]),
    route("POST", "/agent/tools/{name}", &[], &[r#"{"task_id": "{any}"}"#, "{}"]),
    route(
        "POST",
        "/agent/task-history",
        &[],
        &[
            r#"{"task_id": "{any}"}"#,
            r#"{"task_id": "{any}", "message_limit": 200}"#,
        ],
    ),
    route(
        "POST",
        "/agent/task-status",
        &[],
        &[r#"{"task_id": "{any}", "status": "done"}"#],
    ),
    route(
        "POST",
        "/agent/task-message",
        &[],
        &[r#"{"task_id": "{any}", "body": "taken over"}"#],
    ),
    route(
        "POST",
        "/agent/response-request",
        &[],
        &[
            r#"{"agents": ["{any}"], "body": "b"}"#,
            r#"{"agents": ["coder"], "task_id": "{any}", "body": "b"}"#,
        ],
    ),
];

/// What the path's last parameter names.
pub(super) fn kind_of(path: &str) -> &'static str {
    ["letter", "key", "agent", "task", "notification", "session", "turn"]
        .into_iter()
        .find(|kind| path.contains(&format!("{{{kind}}}")))
        .expect("a parameter of a known kind")
}

/// What a query or a body names.
pub(super) fn kind_in(template: &str) -> &'static str {
    for (word, kind) in [
        ("cursor=", "cursor"),
        ("account", "account"),
        ("agent={", "agent"),
        ("task={", "task"),
        ("\"agents\": [\"{", "agent"),
        ("assignees", "agent"),
        ("task", "task"),
        ("session=", "session_key"),
    ] {
        if template.contains(word) {
            return kind;
        }
    }
    "account"
}

pub(super) fn replace_parameter(path: &str, value: &str) -> String {
    let (start, end) = (path.find('{').expect("a parameter"), path.find('}').expect("its end"));
    format!("{}{value}{}", &path[..start], &path[end + 1..])
}

/// What is in the served document and not here, or here and not there.
pub(crate) fn unlisted(document: &Value, rows: &[Route]) -> Vec<String> {
    let served: BTreeSet<String> = document["paths"]
        .as_object()
        .expect("a document has paths")
        .iter()
        .flat_map(|(path, item)| {
            let verbs = ["get", "post", "put", "patch", "delete", "head", "options", "trace"];
            let given: Vec<&str> = verbs.into_iter().filter(|verb| item.get(verb).is_some()).collect();
            given
                .into_iter()
                .map(move |verb| format!("{} {path}", verb.to_uppercase()))
        })
        .collect();
    let listed: BTreeSet<String> = rows.iter().map(|row| format!("{} {}", row.method, row.path)).collect();
    served.symmetric_difference(&listed).cloned().collect()
}
