//! Agents.

use serde_json::json;

use crate::{seed, world::World};

#[tokio::test]
async fn an_agent_is_made_found_changed_and_removed() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let new = json!({"slug": "coder", "name": "Coder", "role": "Writes code.", "provider": "fast", "context_policy": "assembled"});
    let made = world.post(&tenant.admin, &tenant.path("/agents"), new.clone()).await;
    assert_eq!(made.status, 201);
    for (name, value) in new.as_object().unwrap() {
        assert_eq!(&made.body[name], value);
    }
    let id = made.body["id"].as_str().unwrap();
    let plain = world
        .post(
            &tenant.admin,
            &tenant.path("/agents"),
            json!({"slug": "tester", "name": "T"}),
        )
        .await;
    assert_eq!(
        (&plain.body["provider"], &plain.body["role"]),
        (&json!("default"), &json!(""))
    );

    for name in ["coder", id] {
        assert_eq!(
            world
                .get(&tenant.member, &tenant.path(&format!("/agents/{name}")))
                .await
                .body,
            made.body
        );
    }
    assert_eq!(
        world.get(&tenant.member, &tenant.path("/agents")).await.column("slug"),
        ["coder", "tester"]
    );

    let renamed = world
        .patch(&tenant.admin, &tenant.path("/agents/coder"), json!({"slug": "dev"}))
        .await;
    assert_eq!(
        (&renamed.body["slug"], &renamed.body["id"]),
        (&json!("dev"), &json!(id))
    );
    assert_eq!(
        (&renamed.body["name"], &renamed.body["context_policy"]),
        (&json!("Coder"), &json!("assembled"))
    );
    assert!(plain.body["context_policy"].is_null(), "the account's");
    for (policy, status) in [(json!(null), 200), (json!("continue"), 200), (json!("fork"), 400)] {
        let change = json!({"context_policy": policy});
        let changed = world.patch(&tenant.admin, &tenant.path("/agents/dev"), change).await;
        assert_eq!(changed.status, status, "{changed:?}");
        if status == 200 {
            assert_eq!(changed.body["context_policy"], policy);
        }
    }
    world
        .get(&tenant.member, &tenant.path("/agents/coder"))
        .await
        .is_problem(404, "not_found", "");

    assert_eq!(
        world.delete(&tenant.admin, &tenant.path("/agents/dev")).await.status,
        204
    );
    for name in ["dev", id] {
        world
            .get(&tenant.member, &tenant.path(&format!("/agents/{name}")))
            .await
            .is_problem(404, "not_found", "");
        world
            .delete(&tenant.admin, &tenant.path(&format!("/agents/{name}")))
            .await
            .is_problem(404, "not_found", "");
    }
    // its slug is free again
    assert_eq!(
        world
            .post(
                &tenant.admin,
                &tenant.path("/agents"),
                json!({"slug": "dev", "name": "D"})
            )
            .await
            .status,
        201
    );
}

#[tokio::test]
async fn a_slug_is_one_agents_and_never_an_id() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.agent(&tenant, "coder").await;
    world.agent(&tenant, "tester").await;
    let again = world
        .post(
            &tenant.admin,
            &tenant.path("/agents"),
            json!({"slug": "coder", "name": "C"}),
        )
        .await;
    again.is_problem(409, "slug_taken", "");
    let renamed = world
        .patch(&tenant.admin, &tenant.path("/agents/tester"), json!({"slug": "coder"}))
        .await;
    renamed.is_problem(409, "slug_taken", "");
    let uuid = json!({"slug": "0190b5a8-0000-7000-8000-000000000001", "name": "C"});
    world
        .post(&tenant.admin, &tenant.path("/agents"), uuid)
        .await
        .is_problem(400, "invalid_field", "UUID");
    // a slug of another account does not conflict
    let other = world.tenant("other").await;
    world.agent(&other, "coder").await;
}

#[tokio::test]
async fn removing_an_agent_closes_its_sessions_and_says_so() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let agent = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &["coder"]).await;
    let session = seed::session(&world, &tenant, "PROJ-7", &agent, 1, true).await;
    seed::queued(&world, &tenant, session, "n-1").await;

    assert_eq!(
        world.delete(&tenant.admin, &tenant.path("/agents/coder")).await.status,
        204
    );
    let closed = world
        .get(&tenant.member, &tenant.path(&format!("/sessions/{session}")))
        .await;
    assert_eq!(
        (&closed.body["state"], &closed.body["close_reason"]),
        (&json!("closed"), &json!("agent_removed"))
    );
    assert_eq!(closed.body["agent"]["slug"], "coder", "what it did stays its own");
    let item = world.get(&tenant.member, &tenant.path("/notifications/n-1")).await;
    assert_eq!(item.body["state"], "cancelled");
    assert_eq!(world.sent_on("signalbox.session.closed.acme.PROJ-7").await.len(), 1);
    assert_eq!(world.sent_on("signalbox.event.acme.-.agent.removed").await.len(), 1);
    let task = world.get(&tenant.member, &tenant.path("/tasks/PROJ-7")).await;
    assert_eq!(task.body["assignees"], json!([]), "nobody is assigned who is not there");
}
