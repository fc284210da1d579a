//! Sessions and turns, from rows of other services.

use serde_json::json;
use uuid::Uuid;

use crate::{
    seed::{self, Ended},
    world::World,
};

#[tokio::test]
async fn sessions_are_found_by_task_agent_and_state() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let (coder, tester) = (
        world.agent(&tenant, "coder").await,
        world.agent(&tenant, "tester").await,
    );
    world.task(&tenant, "PROJ-7", &[]).await;
    let old = seed::session(&world, &tenant, "PROJ-7", &coder, 1, false).await;
    let new = seed::session(&world, &tenant, "PROJ-7", &coder, 2, true).await;
    let tests = seed::session(&world, &tenant, "PROJ-7", &tester, 1, true).await;
    seed::queued(&world, &tenant, new, "n-1").await;

    let read = world
        .get(&tenant.service, &tenant.path(&format!("/sessions/{new}")))
        .await;
    assert_eq!(read.status, 200);
    let expected = json!({"id": new, "kind": "task", "task": "PROJ-7", "agent": {"id": coder, "slug": "coder"}, "generation": 2,
        "key": format!("task:proj-7:agent:{coder}:acme:v2"), "state": "active", "closed_at": null, "close_reason": null, "queued": 1});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&read.body[name], value, "{name}");
    }
    assert!(read.body["opened_at"].is_string());
    let closed = world
        .get(&tenant.service, &tenant.path(&format!("/sessions/{old}")))
        .await;
    assert_eq!(
        (&closed.body["state"], &closed.body["close_reason"]),
        (&json!("closed"), &json!("task_done"))
    );

    let list = async |query: &str| {
        world
            .get(&tenant.service, &tenant.path(&format!("/sessions{query}")))
            .await
            .column("id")
    };
    let id = |id: Uuid| id.to_string();
    assert_eq!(list("").await, [id(tests), id(new), id(old)]);
    assert_eq!(list("?task=proj-7&agent=coder").await, [id(new), id(old)]);
    assert_eq!(list(&format!("?agent={tester}")).await, [id(tests)]);
    assert_eq!(list("?active=true").await, [id(tests), id(new)]);
    assert_eq!(list("?active=false").await, [id(old)]);
    assert_eq!(list("?task=nothing").await, [] as [String; 0]);
    let first = world.get(&tenant.service, &tenant.path("/sessions?limit=1")).await;
    let cursor = first.body["next_cursor"].as_str().unwrap();
    assert_eq!(list(&format!("?limit=1&cursor={cursor}")).await, [id(new)]);
    world
        .get(&tenant.service, &tenant.path("/sessions?active=yes"))
        .await
        .is_problem(400, "invalid_field", "");
}

#[tokio::test]
async fn a_turn_is_told_whole() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let first = seed::turn(&world, &tenant, session, 1, Ended::default()).await;
    let second = seed::turn(&world, &tenant, session, 2, Ended::default()).await;
    seed::tool_call(&world, &tenant, first, 2, "{broken").await;
    seed::tool_call(&world, &tenant, first, 1, r#"{"message_limit": 5}"#).await;

    let read = world
        .get(&tenant.member, &tenant.path(&format!("/turns/{first}")))
        .await;
    assert_eq!(read.status, 200, "{read:?}");
    let expected = json!({"id": first, "session_id": session, "generation": 1, "number": 1, "state": "finished",
        "notifications": ["n-1"], "profile": {"version": "1", "hash": "h"}, "instructions": "Be brief.", "input": "i",
        "reply": "It is done.", "usage": {"input_tokens": 42}, "error": null, "manifest": {"parts": []},
        "tool_calls": [
            {"call_id": "call-1", "name": "task_history", "arguments": {"message_limit": 5}, "state": "finished", "result": "a result"},
            {"call_id": "call-2", "name": "task_history", "arguments": "{broken", "state": "finished", "result": "a result"}],
        "late": false, "no_reply": false, "task_history_called": false, "provider": "default", "provider_calls": 1, "response_id": null});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&read.body[name], value, "{name}");
    }
    assert!(read.body["started_at"].is_string() && read.body["finished_at"].is_string());

    let path = tenant.path(&format!("/sessions/{session}/turns"));
    let list = world.get(&tenant.member, &path).await;
    assert_eq!(list.column("id"), [first.to_string(), second.to_string()]);
    assert_eq!(list.body["items"][0], read.body, "the same shape");
    let page = world.get(&tenant.member, &format!("{path}?limit=1")).await;
    let cursor = page.body["next_cursor"].as_str().unwrap();
    assert_eq!(
        world
            .get(&tenant.member, &format!("{path}?cursor={cursor}"))
            .await
            .column("id"),
        [second.to_string()]
    );
    for missing in [
        "/turns/nonsense".to_owned(),
        format!("/turns/{session}"),
        format!("/sessions/{first}/turns"),
    ] {
        world
            .get(&tenant.member, &tenant.path(&missing))
            .await
            .is_problem(404, "not_found", "");
    }
}
