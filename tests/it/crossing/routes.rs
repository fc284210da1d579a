//! Every served route with its inputs, from the services' OpenAPI documents: each query parameter and body field that takes a name
//! gets a foreign one.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// Inputs of a route.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) queries: Vec<Said>,
    pub(crate) bodies: Vec<Said>,
    /// A body that is valid in the own account.
    pub(crate) good: Option<Value>,
    /// Its body is a file.
    pub(crate) is_upload: bool,
}

impl Route {
    /// Whether a path matches the route.
    pub(crate) fn is_at(&self, path: &str) -> bool {
        let (steps, pattern) = (path.split('/'), self.path.split('/'));
        steps.clone().count() == pattern.clone().count()
            && steps
                .zip(pattern)
                .all(|(step, expected)| expected.starts_with('{') || step == expected)
    }
}

/// A query or a body. `{any}` stands for a foreign name, mostly of this kind.
#[derive(Clone)]
pub(crate) struct Said {
    pub(crate) template: String,
    pub(crate) kind: &'static str,
}

fn said(template: impl ToString, kind: &'static str) -> Said {
    let template = template.to_string();
    Said { template, kind }
}

pub(crate) static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| routes_of(&orchestrator::openapi(None)));

/// The tools' routes. The session key is in a header.
pub(crate) static AGENT_ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| routes_of(&tool_gateway::openapi()));

const ANY: &str = "{any}";
/// A field that no route has.
const UNKNOWN: &str = "account_id";

fn routes_of(document: &Value) -> Vec<Route> {
    let schemas = &document["components"]["schemas"];
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().expect("a document has paths") {
        for (method, operation) in item.as_object().expect("a path has operations") {
            let path = path.clone().leak();
            let (bodies, good) = bodies_of(path, operation, schemas);
            routes.push(Route {
                method: method.to_uppercase().leak(),
                path,
                queries: queries_of(method, operation),
                bodies,
                good,
                is_upload: !operation["requestBody"]["content"]["application/octet-stream"].is_null(),
            });
        }
    }
    routes
}

/// The kind of thing that a parameter or field names, by its name; `None`: none.
fn kind_of_field(name: &str) -> Option<&'static str> {
    match name {
        "cursor" => Some("cursor"),
        "message_id" => Some("message"),
        "answers" => Some("question"),
        "session" | "parent" | "parent_session_id" | "from_session_id" | "context_session" => Some("session"),
        "with" | "turn" => Some("turn"),
        // Words.
        "task_context" => None,
        _ if name.contains("agent") || ["assignees", "from", "to"].contains(&name) => Some("agent"),
        _ if name.contains("task") => Some("task"),
        _ => None,
    }
}

/// The kind of the path's last parameter; `None`: an account, a tool, or none.
pub(crate) fn kind_of(path: &'static str) -> Option<&'static str> {
    let last = path.rsplit_once('{')?.1.split_once('}')?.0;
    Some(last).filter(|name| *name != "account" && *name != "name")
}

/// The kind of the path's last parameter but one, which has the last one.
pub(crate) fn kind_within(path: &'static str) -> Option<&'static str> {
    kind_of(path.rsplit_once('{')?.0)
}

fn queries_of(method: &str, operation: &Value) -> Vec<Said> {
    if method != "get" {
        return Vec::new();
    }
    let mut queries = vec![said(format!("{UNKNOWN}={ANY}"), "account")];
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().expect("a parameter has a name");
        if let Some(kind) = kind_of_field(name).filter(|_| parameter["in"] == "query") {
            queries.push(said(format!("{name}={ANY}"), kind));
            queries.push(said(format!("limit=1&{name}={ANY}"), kind));
        }
    }
    queries
}

/// Bodies that have no effect in the own account either: each names a thing that must exist, or has an unknown field. Plus one
/// valid body, which is sent only if the path names a foreign thing.
fn bodies_of(path: &'static str, operation: &Value, schemas: &Value) -> (Vec<Said>, Option<Value>) {
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if body.is_null() {
        return (Vec::new(), None);
    }
    let body = resolved(body, schemas);
    let none = Map::new();
    let fields = body["properties"].as_object().unwrap_or(&none);
    let required: Vec<&str> = body["required"]
        .as_array()
        .map_or_else(Vec::new, |names| names.iter().filter_map(Value::as_str).collect());
    let with = |wanted: &dyn Fn(&str) -> bool| -> Map<String, Value> {
        let wanted = fields.iter().filter(|(name, _)| wanted(name));
        wanted
            .map(|(name, schema)| (name.clone(), sample(name, schema, schemas)))
            .collect()
    };
    // Bodies that are only accepted would have an effect later, so they lack a required field. A tool's call also has an answer.
    let has = |status: &str| operation["responses"].get(status).is_some();
    let is_for_later = has("202") && !has("200");
    let least = with(&|name| required.contains(&name) && !is_for_later);
    let whole = with(&|name| !is_for_later || !required.contains(&name));
    let mut bodies = Vec::new();
    for (name, schema) in fields {
        let (Some(kind), Some(is_list)) = (kind_of_field(name), names_by(schema, schemas)) else {
            continue;
        };
        let foreign = if is_list { json!([ANY]) } else { json!(ANY) };
        for body in [&least, &whole] {
            let mut body = body.clone();
            body.insert(name.clone(), foreign.clone());
            bodies.push(said(Value::Object(body), kind));
        }
    }
    if body["additionalProperties"] == false {
        let mut body = least.clone();
        body.insert(UNKNOWN.to_owned(), ANY.into());
        bodies.push(said(Value::Object(body), "account"));
    }
    let good = Value::Object(if least.is_empty() { whole } else { least });
    if kind_of(path).is_some() {
        bodies.push(said(&good, "account"));
    }
    if fields.is_empty() && bodies.is_empty() {
        // Arguments of any tool.
        bodies.extend([said(json!({"task_id": ANY}), "task"), said("{}", "task")]);
    }
    (bodies, Some(good))
}

fn resolved<'a>(schema: &'a Value, schemas: &'a Value) -> &'a Value {
    let first = |choices: &'a Value| choices.as_array()?.iter().find(|choice| choice["type"] != "null");
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return resolved(&schemas[name], schemas);
    }
    match first(&schema["anyOf"]).or_else(|| first(&schema["allOf"])) {
        Some(choice) => resolved(choice, schemas),
        None => schema,
    }
}

fn type_of(schema: &Value) -> &str {
    let kinds = schema["type"]
        .as_array()
        .map(|kinds| kinds.iter().find(|kind| **kind != "null"));
    kinds.flatten().unwrap_or(&schema["type"]).as_str().unwrap_or_default()
}

/// Whether a field takes a name (`false`), or a list of names (`true`).
fn names_by(schema: &Value, schemas: &Value) -> Option<bool> {
    match type_of(resolved(schema, schemas)) {
        "string" => Some(false),
        "array" => Some(true),
        _ => None,
    }
}

/// A valid value that names things which both accounts have.
fn sample(name: &str, schema: &Value, schemas: &Value) -> Value {
    let schema = resolved(schema, schemas);
    if let Some(word) = schema["enum"].as_array().and_then(|words| words.last()) {
        return word.clone();
    }
    // Words with descriptions.
    if let Some(choice) = schema["oneOf"].as_array().and_then(|choices| choices.last()) {
        return choice["const"].clone();
    }
    match (type_of(schema), kind_of_field(name)) {
        ("array", _) => json!([sample(name, &schema["items"], schemas)]),
        ("boolean", _) => json!(true),
        ("integer", _) => json!(1),
        ("object", _) => {
            let required = schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            let field = |name: &str| (name.to_owned(), sample(name, &schema["properties"][name], schemas));
            required.map(field).collect()
        }
        (_, Some("agent")) => json!("coder"),
        (_, Some("task")) => json!("LIVE-1"),
        _ if schema["format"] == "date-time" => json!("2999-01-01T00:00:00Z"),
        _ if schema["format"] == "uuid" => json!(uuid::Uuid::nil()),
        _ => json!("taken-over"),
    }
}

pub(crate) fn replace_parameter(path: &str, value: &str) -> String {
    let (start, end) = (path.find('{').expect("a parameter"), path.find('}').expect("its end"));
    format!("{}{value}{}", &path[..start], &path[end + 1..])
}

#[test]
fn what_can_be_said_to_a_route_names_what_is_foreign() {
    let check = |method: &str, path: &str, queries: &[&str], bodies: &[&str]| {
        let all = ROUTES.iter().chain(AGENT_ROUTES.iter());
        let route = all
            .into_iter()
            .find(|route| route.method == method && route.path == path)
            .unwrap();
        let templates = |said: &[Said]| said.iter().map(|said| said.template.clone()).collect::<Vec<_>>();
        assert_eq!(templates(&route.queries), queries, "{method} {path}");
        assert_eq!(templates(&route.bodies), bodies, "{method} {path}");
    };
    check(
        "GET",
        "/api/orgs/{account}/sessions",
        &[
            "account_id={any}",
            "agent={any}",
            "limit=1&agent={any}",
            "cursor={any}",
            "limit=1&cursor={any}",
            "parent={any}",
            "limit=1&parent={any}",
            "task={any}",
            "limit=1&task={any}",
        ],
        &[],
    );
    check("DELETE", "/api/orgs/{account}/keys/{key}", &[], &[]);
    check(
        "PATCH",
        "/api/orgs/{account}/tasks/{task}",
        &[],
        &[
            r#"{"assignees":["{any}"]}"#,
            r#"{"assignees":["{any}"],"blocked_by":["taken-over"],"blocked_on":{"action":"taken-over","owner":"taken-over"},"description":"taken-over","dry_run":true,"override":true,"parent_task":"LIVE-1","persona":"00000000-0000-0000-0000-000000000000","plan_gate":{"mode":"required"},"status":"archived","task_context":"optional","title":"taken-over"}"#,
            r#"{"parent_task":"{any}"}"#,
            r#"{"assignees":["coder"],"blocked_by":["taken-over"],"blocked_on":{"action":"taken-over","owner":"taken-over"},"description":"taken-over","dry_run":true,"override":true,"parent_task":"{any}","persona":"00000000-0000-0000-0000-000000000000","plan_gate":{"mode":"required"},"status":"archived","task_context":"optional","title":"taken-over"}"#,
            r#"{"account_id":"{any}"}"#,
            r#"{"assignees":["coder"],"blocked_by":["taken-over"],"blocked_on":{"action":"taken-over","owner":"taken-over"},"description":"taken-over","dry_run":true,"override":true,"parent_task":"LIVE-1","persona":"00000000-0000-0000-0000-000000000000","plan_gate":{"mode":"required"},"status":"archived","task_context":"optional","title":"taken-over"}"#,
        ],
    );
    check(
        "POST",
        "/api/orgs/{account}/keys",
        &[],
        &[
            r#"{"agent":"{any}","name":"taken-over","role":"gateway"}"#,
            r#"{"agent":"{any}","expires_at":"2999-01-01T00:00:00Z","name":"taken-over","role":"gateway"}"#,
            r#"{"account_id":"{any}","name":"taken-over","role":"gateway"}"#,
        ],
    );
    check(
        "POST",
        "/agent/task-message",
        &[],
        &[
            r#"{"body":"taken-over","task_id":"{any}"}"#,
            r#"{"body":"taken-over","task_id":"{any}"}"#,
            r#"{"account_id":"{any}","body":"taken-over","task_id":"LIVE-1"}"#,
        ],
    );
    check(
        "POST",
        "/api/orgs/{account}/sessions/{session}/stop",
        &[],
        &[
            r#"{"account_id":"{any}"}"#,
            r#"{"then":"continue","turn_id":"00000000-0000-0000-0000-000000000000"}"#,
        ],
    );
    check("DELETE", "/api/orgs/{account}/holds/{hold}", &[], &[]);
    check(
        "PUT",
        "/api/orgs/{account}/tasks/{task}/context",
        &[],
        &[
            r#"{"account_id":"{any}","body":"taken-over"}"#,
            r#"{"body":"taken-over"}"#,
        ],
    );
    check(
        "POST",
        "/api/orgs/{account}/questions/{question}/answer",
        &[],
        &[
            r#"{"account_id":"{any}"}"#,
            r#"{"accept_stale":true,"arguments_hash":"taken-over","options":["taken-over"],"remember":true,"text":"taken-over","verdict":"changes"}"#,
        ],
    );
    check(
        "POST",
        "/api/orgs/{account}/tasks/{task}/cancel",
        &[],
        &[
            r#"{"account_id":"{any}"}"#,
            r#"{"dry_run":true,"reason":"taken-over","tree":true}"#,
        ],
    );
    check(
        "PATCH",
        "/api/orgs/{account}/sessions/{session}/queue/{notification}",
        &[],
        &[r#"{"account_id":"{any}","revision":1}"#, r#"{"revision":1}"#],
    );
    assert_eq!(
        kind_within("/api/orgs/{account}/sessions/{session}/queue/{notification}"),
        Some("session")
    );
    assert_eq!(kind_within("/api/orgs/{account}/sessions/{session}/stop"), None);
    check("POST", "/agent/tools/{name}", &[], &[r#"{"task_id":"{any}"}"#, "{}"]);
}
