//! Answers to malformed requests.

use axum::http::Method;
use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn every_refusal_is_a_problem_that_says_what_to_do() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let tasks = tenant.path("/tasks");
    let post = |kind: &str, body: Vec<u8>| {
        world
            .call(Method::POST, &tasks)
            .token(&tenant.member)
            .header("content-type", kind)
            .raw(body)
            .send()
    };
    post("application/json", b"{".to_vec())
        .await
        .is_problem(400, "malformed", "not JSON");
    post("application/json", b"[]".to_vec())
        .await
        .is_problem(400, "malformed", "not an object");
    post("application/json", b"{}".to_vec())
        .await
        .is_problem(400, "invalid_field", "title");
    post("application/json", b"{\"title\":\"t\",\"assignee\":\"x\"}".to_vec())
        .await
        .is_problem(400, "invalid_field", "assignee");
    post("application/json", b"{\"title\":\"a\\u0000b\"}".to_vec())
        .await
        .is_problem(400, "invalid_field", "U+0000");
    post("application/json", b"{\"title\":\"\xff\"}".to_vec())
        .await
        .is_problem(400, "malformed", "");
    post("text/plain", b"{\"title\":\"t\"}".to_vec()).await.is_problem(
        415,
        "unsupported_media_type",
        "application/json",
    );
    post("application/json", vec![b' '; 1024 * 1024 + 1])
        .await
        .is_problem(413, "too_large", "");
    world
        .delete(&tenant.member, &tasks)
        .await
        .is_problem(405, "method_not_allowed", "");
    world
        .get(&tenant.member, "/api/nothing")
        .await
        .is_problem(404, "not_found", "");
    world
        .get(&tenant.member, "/nothing")
        .await
        .is_problem(404, "not_found", "");
    let patched = world.patch(&tenant.admin, &tenant.path(""), json!({"name": 7})).await;
    patched.is_problem(400, "invalid_field", "name:");
    let kind = world
        .call(Method::PATCH, &tenant.path(""))
        .token(&tenant.admin)
        .raw("{}")
        .send()
        .await;
    kind.is_problem(415, "unsupported_media_type", "");
}

#[tokio::test]
async fn answers_are_not_to_be_run_or_kept() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let answer = world.get(&tenant.member, &tenant.path("/tasks")).await;
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert!(
        answer.headers["content-security-policy"]
            .to_str()
            .unwrap()
            .contains("default-src 'none'")
    );
}
