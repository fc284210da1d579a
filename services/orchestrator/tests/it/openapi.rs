//! The OpenAPI document: it is served, complete, and as strict as the API.

use std::collections::BTreeSet;

use axum::http::Method;
use orchestrator::settings::PublicUrl;
use serde_json::{Value, json};

use crate::world::World;

fn document() -> Value {
    orchestrator::openapi(None)
}

#[test]
fn every_operation_says_what_it_takes_and_gives() {
    let document = document();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    let mut names = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let about = format!("{method} {path}");
            assert!(operation["summary"].is_string(), "{about}");
            // What is a person's own is nobody else's.
            let is_own = path == "/api/me" || path.starts_with("/api/me/") || path.ends_with("/messages/read");
            let callers = match is_own {
                true => "For: a member's own keys.",
                false => "For: the operator",
            };
            assert!(operation["description"].as_str().unwrap().contains(callers), "{about}");
            for refusal in ["400", "401", "403", "429", "500", "503"] {
                assert!(operation["responses"][refusal].is_object(), "{about}: {refusal}");
            }
            let name = operation["operationId"].as_str().unwrap().to_owned();
            assert!(names.insert(name.clone()), "{about}: another is called {name}");
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let named = |name: &str, place: &str| parameters.iter().any(|p| p["name"] == name && p["in"] == place);
            for name in path
                .split('/')
                .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            {
                assert!(named(name, "path"), "{about}: {name}");
            }
            assert_eq!(named("Idempotency-Key", "header"), method == "post", "{about}");
            let answers = operation["responses"].as_object().unwrap();
            let (status, answer) = answers.iter().find(|(status, _)| status.starts_with('2')).unwrap();
            assert!(!answer["description"].as_str().unwrap().is_empty(), "{about}");
            if status != "204" {
                let contents = answer["content"].as_object().unwrap();
                let is_told =
                    |(media, content): (&String, &Value)| media != "application/json" || content["schema"].is_object();
                assert!(!contents.is_empty() && contents.iter().all(is_told), "{about}");
            }
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    found.push(reference.clone());
                }
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 30);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn the_shapes_of_the_contract_are_there() {
    let document = document();
    let check = |schema: &str, fields: &[&str]| {
        let properties = &document["components"]["schemas"][schema]["properties"];
        for field in fields {
            assert!(properties.get(field).is_some(), "{schema}.{field}: {properties}");
        }
    };
    check(
        "Notification",
        &[
            "id",
            "task",
            "agent",
            "type",
            "state",
            "session_id",
            "session_key",
            "turn_id",
            "attempts",
            "reason",
            "created_at",
        ],
    );
    check(
        "Session",
        &[
            "id",
            "kind",
            "task",
            "agent",
            "generation",
            "key",
            "state",
            "opened_at",
            "closed_at",
            "close_reason",
            "queued",
            "stopping",
            "gate",
            "gated_since",
        ],
    );
    check("Stopping", &["state", "turn_id"]);
    check(
        "Queue",
        &["revision", "gate", "stopping", "running", "items", "next_cursor"],
    );
    check(
        "Item",
        &[
            "id",
            "place",
            "queue_mode",
            "author",
            "type",
            "title",
            "body",
            "revision",
            "created_at",
            "editable",
            "why",
        ],
    );
    check("Next", &["code", "on", "ref", "text", "since", "until"]);
    check("SessionCan", &["inject", "steer"]);
    check(
        "Turn",
        &[
            "id",
            "session_id",
            "generation",
            "number",
            "state",
            "notifications",
            "profile",
            "instructions",
            "input",
            "reply",
            "tool_calls",
            "usage",
            "error",
            "started_at",
            "finished_at",
            "manifest",
        ],
    );
    check("Message", &["id", "author", "body", "created_at"]);
    check(
        "DeadLetter",
        &[
            "id",
            "subject",
            "reason",
            "detail",
            "payload",
            "attempts",
            "created_at",
            "redriven_at",
        ],
    );
}

#[tokio::test]
async fn the_document_and_its_page_are_served_to_anyone() {
    let world = World::new().await;
    let served = world.call(Method::GET, "/api/openapi.json").send().await;
    assert_eq!((served.status.as_u16(), &served.body), (200, &document()));
    let page = world.call(Method::GET, "/api/docs/").send().await;
    assert_eq!(page.status, 200);
    assert!(page.body.as_str().unwrap().contains("swagger"), "{page:?}");
    assert!(
        !page.body.as_str().unwrap().contains("http"),
        "it needs nothing from elsewhere"
    );
    let start = world.call(Method::GET, "/api/docs/swagger-initializer.js").send().await;
    assert!(start.body.as_str().unwrap().contains("/api/openapi.json"), "{start:?}");
    assert_eq!(
        world
            .call(Method::GET, "/api/docs/swagger-ui-bundle.js")
            .send()
            .await
            .status,
        200
    );
    assert!(
        page.headers["content-security-policy"]
            .to_str()
            .unwrap()
            .contains("default-src 'self'")
    );
}

#[tokio::test]
async fn the_document_begins_with_the_public_address() {
    assert_eq!(document()["servers"][0]["url"], "/", "where it is served");
    let url = "https://signalbox.example.com";
    let public_url = PublicUrl::try_from(format!("{url}/")).unwrap();
    let world = World::with(|settings| settings.public_url = Some(public_url)).await;
    let served = world.call(Method::GET, "/api/openapi.json").send().await;
    assert_eq!(served.body["servers"][0]["url"], url);
}

/// The enforced limits of a field, as the document states them.
#[test]
fn the_document_says_what_is_enforced() {
    let document = document();
    let check = |pointer: &str, expected: Value| {
        let found = document.pointer(pointer);
        assert_eq!(found, Some(&expected), "{pointer}");
    };
    let schema = |name: &str| format!("/components/schemas/{name}");
    check(&schema("NewTask/required"), json!(["title"]));
    check(&schema("NewTask/additionalProperties"), json!(false));
    check(&schema("NewTask/properties/title/minLength"), json!(1));
    check(&schema("NewTask/properties/title/maxLength"), json!(1024));
    check(&schema("NewTask/properties/assignees/maxItems"), json!(64));
    check(
        &schema("AccountChange/properties/turns_in_flight_max/minimum"),
        json!(1),
    );
    check(&schema("AccountId/pattern"), json!("^[a-z0-9][a-z0-9-]{0,62}$"));
    check(
        &schema("KeyRole/enum"),
        json!(["admin", "member", "service", "publisher", "gateway"]),
    );
    // An answer has all of its keys; a request has the required ones.
    let keys = document.pointer(&schema("Task/required")).unwrap().as_array().unwrap();
    assert_eq!(keys.len(), 16);
    let list = &document["paths"]["/api/orgs/{account}/tasks"]["get"]["parameters"];
    let limit = list
        .as_array()
        .unwrap()
        .iter()
        .find(|parameter| parameter["name"] == "limit")
        .unwrap();
    assert_eq!(
        (&limit["schema"]["minimum"], &limit["schema"]["type"]),
        (&json!(1), &json!("integer"))
    );
    let answers = |path: &str, method: &str| -> Vec<String> {
        let responses = document["paths"][path][method]["responses"].as_object();
        responses.unwrap().keys().cloned().collect()
    };
    assert_eq!(
        answers("/api/orgs/{account}/agents", "post"),
        [
            "201", "400", "401", "403", "404", "408", "409", "413", "415", "422", "429", "500", "503"
        ]
    );
    assert_eq!(
        answers("/api/orgs/{account}/sessions/{session}/stop", "post"),
        [
            "200", "202", "400", "401", "403", "404", "408", "409", "413", "415", "422", "429", "500", "503"
        ]
    );
    let item = "/api/orgs/{account}/sessions/{session}/queue/{notification}";
    assert_eq!(
        answers(item, "patch"),
        [
            "200", "400", "401", "403", "404", "408", "409", "413", "415", "422", "429", "500", "503"
        ]
    );
    assert_eq!(
        answers(item, "delete"),
        ["200", "400", "401", "403", "404", "409", "429", "500", "503"]
    );
    assert_eq!(
        answers("/api/orgs/{account}/keys/{key}", "delete"),
        ["204", "400", "401", "403", "404", "429", "500", "503"]
    );
}
