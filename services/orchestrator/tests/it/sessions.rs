//! Sessions and turns, from rows of other services.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    members::member,
    seed::{self, Ended},
    world::{Answer, World},
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

/// In the account of the key as in that of a path: who has them made, and what they are like.
#[tokio::test]
async fn sessions_are_found_by_owner_persona_and_parent() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    for agent in ["coder", "tester"] {
        world.agent(&tenant, agent).await;
    }
    let careful = json!({"slug": "careful", "name": "n", "visibility": "shared", "agent": "tester",
        "files": [{"filename": "A.md", "content": "a"}]});
    let made = world.post(&tenant.admin, &tenant.path("/personas"), careful).await;
    assert_eq!(made.status, 201, "{made:?}");
    let (ann, ben) = (
        member(&world, &tenant, "ann", "member").await,
        member(&world, &tenant, "ben", "member").await,
    );
    let woken = async |key: &str| {
        let woken = world.post(key, "/api/me/orchestrator/wake", json!({})).await;
        woken.body["session_id"].as_str().unwrap().to_owned()
    };
    let (of_ann, of_ben) = (woken(&ann).await, woken(&ben).await);
    let create = async |key: &str, body: Value| world.post(key, "/api/sessions", body).await;
    let child = json!({"prompt": "Fix it", "personaSlug": "careful", "parentSessionId": "orchestrator:ann"});
    let child = create(&ann, child).await;
    assert_eq!(child.status, 201, "{child:?}");
    let told = [
        (&child.body["agent"]["slug"], "tester"),
        (&child.body["parent_session_id"], of_ann.as_str()),
        (&child.body["owner"], "user:ann"),
    ];
    for (found, expected) in told {
        assert_eq!(found, expected);
    }
    let second = json!({"prompt": "b", "agent": "coder", "persona": "careful", "parent_session_id": of_ann});
    let second = create(&ann, second).await;
    assert_eq!(second.body["agent"]["slug"], "coder", "{second:?}");
    let nobodys = create(&tenant.admin, json!({"prompt": "c", "agent": "coder"})).await;
    let id = |made: &Answer| made.body["id"].as_str().unwrap().to_owned();
    let (child, second, nobodys) = (id(&child), id(&second), id(&nobodys));

    for parent in [&*of_ben, "orchestrator:ben", &*child, &*Uuid::now_v7().to_string(), "x"] {
        let refused = json!({"prompt": "d", "agent": "coder", "parent_session_id": parent});
        let refused = create(&ann, refused).await;
        refused.is_problem(400, "invalid_field", "parent_session_id");
    }
    let theirs = json!({"prompt": "d", "agent": "coder", "parent_session_id": of_ann});
    let refused = create(&tenant.admin, theirs).await;
    refused.is_problem(400, "invalid_field", "parent_session_id");
    for waits in ["repo", "scope_key", "enable_memory"] {
        let refused = create(&ann, json!({"prompt": "d", "agent": "coder", waits: "e"})).await;
        refused.is_problem(400, "invalid_field", waits);
    }
    create(&ann, json!({"prompt": "d"}))
        .await
        .is_problem(400, "no_agent", "");

    for path in ["/api/sessions".to_owned(), tenant.path("/sessions")] {
        let list = async |query: &str| world.get(&ann, &format!("{path}?{query}")).await;
        for (query, expected) in [
            ("owner=user:ann", vec![&second, &child]),
            ("creatorId=user:ann&agent=coder", vec![&second]),
            ("owner=account", vec![&nobodys]),
            ("owner=user:ben", vec![]),
            ("persona=careful", vec![&second, &child]),
            ("personaSlug=careful&agent=tester", vec![&child]),
            ("persona=other", vec![]),
            ("owner=user:ann&status=closed", vec![]),
            ("owner=user:ann&status=active", vec![&second, &child]),
            (&*format!("parent={of_ann}"), vec![&second, &child]),
            (&*format!("parent={of_ben}"), vec![]),
        ] {
            assert_eq!(
                list(query).await.column("id").iter().collect::<Vec<_>>(),
                expected,
                "{query}"
            );
        }
        let parent = format!("parent={of_ann}&limit=1");
        let first = list(&parent).await;
        let cursor = first.body["next_cursor"].as_str().unwrap();
        let next = list(&format!("{parent}&cursor={cursor}")).await;
        assert_eq!(
            (first.column("id"), next.column("id")),
            (vec![second.clone()], vec![child.clone()])
        );
        for (bad, words) in [
            ("owner=ann", "owner"),
            ("status=open", "status"),
            ("status=closed&active=true", "status"),
            ("repo=a/b", "repo"),
        ] {
            list(bad).await.is_problem(400, "invalid_field", words);
        }
        // By any name; others' orchestrators are as unknown as none.
        let key = world.get(&ann, &format!("{path}/{child}")).await.body["key"].clone();
        for (key, name, expected) in [
            (&ann, "orchestrator:ann", Some(&of_ann)),
            (&ann, "orchestrator:acme:ann:v1", Some(&of_ann)),
            (&ann, key.as_str().unwrap(), Some(&child)),
            (&tenant.service, &*child, Some(&child)),
            (&tenant.admin, "orchestrator:ann", Some(&of_ann)),
            (&ben, "orchestrator:ann", None),
            (&ben, &*of_ann, None),
            (&ben, "orchestrator:nobody", None),
            (&ann, "orchestrator:org:acme", None),
            (&ann, &key.as_str().unwrap().replace(":v1", ":v2"), None),
        ] {
            let read = world.get(key, &format!("{path}/{name}")).await;
            assert_eq!(
                read.body["id"].as_str(),
                expected.map(String::as_str),
                "{name}: {read:?}"
            );
            assert_eq!(
                read.status.as_u16(),
                if expected.is_some() { 200 } else { 404 },
                "{name}"
            );
        }
    }
    let reset = tenant.path(&format!("/sessions/{child}/reset"));
    let next = world.post(&tenant.member, &reset, json!({"reason": "r"})).await.body["session"].clone();
    let next = world
        .get(&ann, &format!("/api/sessions/{}", next.as_str().unwrap()))
        .await;
    assert_eq!(next.body["parent_session_id"], *of_ann, "{next:?}");
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
