//! Orchestrators: their identities, and what is written to them.

use serde_json::{Value, json};

use crate::{
    members::member,
    world::{OPERATOR, World},
};

#[tokio::test]
async fn a_member_has_an_orchestrator_with_a_handle_of_its_own() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann.b", "member").await;
    let own = "/api/me/orchestrator/identity";
    let identity = world.get(&ann, own).await;
    assert_eq!(identity.status, 200, "{identity:?}");
    let said = |identity: &Value| {
        let fields = ["name", "handle", "style", "reachable", "revision"];
        fields.map(|field| identity[field].clone())
    };
    assert_eq!(
        said(&identity.body),
        [
            json!("Agent"),
            json!("ann-b"),
            json!("professional"),
            json!("off"),
            json!(1)
        ]
    );

    let put = async |key: &str, path: &str, change: Value| world.put(key, path, change).await;
    let change = json!({"name": "Jarvis", "handle": "jarvis", "style": "terse", "customInstructions": "Say sir.", "avatar": "🦊"});
    let changed = put(&ann, own, change).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    assert_eq!(changed.body["custom_instructions"], "Say sir.");
    assert_eq!(changed.body["revision"], 2);
    // What a guest may ask is in the guest's prompt.
    let changed = put(&ann, own, json!({"reachable": "answer", "avatar": null})).await;
    assert_eq!(
        (&changed.body["revision"], &changed.body["avatar"]),
        (&json!(3), &Value::Null)
    );

    for (bad, status, code) in [
        (json!({"handle": "Jarvis"}), 400, "invalid_field"),
        (json!({"avatar": "https://example.com/x.png"}), 400, "invalid_field"),
        (json!({"avatar": "🦊🦊"}), 400, "invalid_field"),
        (json!({"name": "n".repeat(65)}), 400, "invalid_field"),
        (json!({"enabled": true}), 400, "invalid_field"),
        (json!({"style": "loud"}), 400, "invalid_field"),
    ] {
        let refused = put(&ann, own, bad.clone()).await;
        refused.is_problem(status, code, "");
    }
    // A handle is an orchestrator's or an agent's.
    let ben = member(&world, &tenant, "ben", "member").await;
    world.agent(&tenant, "coder").await;
    for taken in ["jarvis", "coder"] {
        let refused = put(&ben, own, json!({"handle": taken})).await;
        refused.is_problem(409, "handle_taken", "");
    }
    let agent = json!({"slug": "jarvis", "name": "n"});
    let refused = world.post(&tenant.admin, &tenant.path("/agents"), agent).await;
    refused.is_problem(409, "slug_taken", "");
    // What runs it is no agent.
    let agents = world.get(&tenant.admin, &tenant.path("/agents?kind=worker")).await;
    assert_eq!(agents.body["items"].as_array().unwrap().len(), 1, "{agents:?}");
}

#[tokio::test]
async fn the_account_s_orchestrator_is_off_until_an_admin_enables_it() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let path = tenant.path("/orchestrator/identity");
    let identity = world.get(&tenant.admin, &path).await;
    assert_eq!(
        (&identity.body["enabled"], &identity.body["handle"]),
        (&json!(false), &json!("orchestrator"))
    );
    let ann = member(&world, &tenant, "ann", "member").await;
    let enable = async |key: &str| {
        let change = json!({"enabled": true, "handle": "ops"});
        world.put(key, &path, change).await
    };
    assert_eq!(enable(&ann).await.status, 403);
    let enabled = enable(&tenant.admin).await;
    assert_eq!(
        (enabled.status.as_u16(), &enabled.body["enabled"]),
        (200, &json!(true)),
        "{enabled:?}"
    );
    assert_eq!(world.get(&ann, &path).await.body["handle"], "ops");
}

#[tokio::test]
async fn an_orchestrator_is_woken_without_a_turn() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let state = async || world.get(&ann, "/api/me/orchestrator").await.body;
    let absent = state().await;
    assert_eq!(
        (&absent["state"], &absent["session_key"]),
        (&json!("absent"), &json!("orchestrator:ann"))
    );
    for _ in 0..2 {
        let woken = world.post(&ann, "/api/me/orchestrator/wake", json!({})).await;
        assert_eq!(woken.status, 200, "{woken:?}");
        assert_eq!(
            (&woken.body["state"], &woken.body["queued"]),
            (&json!("idle"), &json!(0))
        );
        assert_eq!(woken.body["session_key"], "orchestrator:acme:ann:v1");
    }
}

/// Others' orchestrators are as unknown as those of nobody.
#[tokio::test]
async fn a_person_writes_to_their_own_orchestrator_only() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    member(&world, &tenant, "ben", "admin").await;
    let prompt = async |key: &str, session: &str| {
        let path = format!("/api/sessions/{session}/prompt");
        world.post(key, &path, json!({"content": "hello"})).await
    };
    for own in [
        "orchestrator:ann",
        "orchestrator:acme:ann:v1",
        "orchestrator:ACME:Ann:v9",
    ] {
        assert_eq!(prompt(&ann, own).await.status, 202, "{own}");
    }
    for hidden in [
        "orchestrator:ben",
        "orchestrator:acme:ben:v1",
        "orchestrator:umbra:ann:v1",
        "orchestrator:nobody",
        "x",
    ] {
        assert_eq!(prompt(&ann, hidden).await.status, 404, "{hidden}");
    }
    let branch = uuid::Uuid::now_v7();
    let refused = prompt(&ann, &format!("replay:{branch}:acme:v1")).await;
    refused.is_problem(409, "not_promptable", "");
}

/// The account's orchestrator takes words from admins. Others write mail to it; to a service it is as absent as one that is not there.
#[tokio::test]
async fn only_admins_prompt_the_orchestrator_of_the_account() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let (ann, ben) = (
        member(&world, &tenant, "ann", "member").await,
        member(&world, &tenant, "ben", "admin").await,
    );
    let enabled = json!({"enabled": true});
    world
        .put(&tenant.admin, &tenant.path("/orchestrator/identity"), enabled)
        .await;
    for (key, prompted, notified, mailed) in [
        (&tenant.admin, 202, 202, 409),
        (&ben, 202, 202, 201),
        (&ann, 404, 404, 201),
        (&tenant.member, 404, 404, 409),
        (&tenant.service, 404, 404, 409),
        (&tenant.publisher, 403, 404, 403),
    ] {
        for session in ["orchestrator:org:acme", "orchestrator:org:acme:v1"] {
            let path = format!("/api/sessions/{session}/prompt");
            let told = world.post(key, &path, json!({"content": "c"})).await;
            assert_eq!(told.status.as_u16(), prompted, "{key}");
            let told = json!({"session": session, "body": "b"});
            let told = world.post(key, &tenant.path("/notifications"), told).await;
            assert_eq!(told.status.as_u16(), notified, "{key}");
        }
        let mail = json!({"to": "orchestrator:org:acme", "content": "c"});
        let mail = world.post(key, "/api/messages", mail).await;
        assert_eq!(mail.status.as_u16(), mailed, "{key}: {mail:?}");
    }
    let told = json!({"session": "orchestrator:org:acme", "body": "b"});
    let told = world.post(OPERATOR, &tenant.path("/notifications"), told).await;
    assert_eq!(told.status, 202, "{told:?}");
}

/// The list of agents has the orchestrators that one may write to, as the directory has.
#[tokio::test]
async fn orchestrators_that_answer_are_listed_with_the_agents() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let (ann, ben) = (
        member(&world, &tenant, "ann", "member").await,
        member(&world, &tenant, "ben", "member").await,
    );
    world.agent(&tenant, "coder").await;
    let listed = async |key: &str, query: &str| {
        let listed = world.get(key, &tenant.path(&format!("/agents{query}"))).await;
        (listed.column("kind"), listed.column("handle"), listed.body)
    };
    let handles = async |key: &str, query: &str| listed(key, query).await.1;
    assert_eq!(handles(&ann, "").await, ["ann", "coder"]);
    let reachable = json!({"reachable": "answer", "name": "Friday", "avatar": "🦊"});
    world.put(&ben, "/api/me/orchestrator/identity", reachable).await;
    let (kinds, names, body) = listed(&ann, "").await;
    assert_eq!(
        (kinds, names),
        (
            ["orchestrator", "orchestrator", "worker"].map(str::to_owned).to_vec(),
            ["ann", "ben", "coder"].map(str::to_owned).to_vec(),
        )
    );
    let of_ben = json!({"kind": "orchestrator", "name": "Friday", "handle": "ben", "avatar": "🦊", "user_id": "ben"});
    assert_eq!(body["items"][1], of_ben);
    assert_eq!(body["items"][2]["slug"], "coder");
    assert_eq!(handles(&ann, "?kind=worker").await, ["coder"]);
    assert_eq!(handles(&ann, "?kind=orchestrator").await, ["ann", "ben"]);
    let enabled = json!({"enabled": true});
    world
        .put(&tenant.admin, &tenant.path("/orchestrator/identity"), enabled)
        .await;
    assert_eq!(
        handles(&tenant.member, "?kind=orchestrator").await,
        ["ben", "orchestrator"]
    );
    // Whose agents a service uses does not tell it who the account's people are.
    assert_eq!(handles(&tenant.service, "").await, ["coder"]);
    let mut all = Vec::new();
    let mut query = "?limit=1".to_owned();
    loop {
        let (_, names, body) = listed(&ann, &query).await;
        all.extend(names);
        let Some(cursor) = body["next_cursor"].as_str() else {
            break;
        };
        query = format!("?limit=1&cursor={cursor}");
    }
    assert_eq!(all, ["ann", "ben", "coder", "orchestrator"]);
    let refused = world.get(&ann, &tenant.path("/agents?kind=person")).await;
    refused.is_problem(400, "invalid_field", "kind");
}
