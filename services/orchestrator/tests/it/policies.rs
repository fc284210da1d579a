//! Tool policies over the API: made, changed, listed, removed; who may, and what is refused.

use axum::http::StatusCode;
use serde_json::{Value, json};
use storage::tool_policy::POLICIES_MAX;
use testkit::rows;

use crate::{
    seed,
    world::{Answer, Tenant, World},
};

const COUNT: &str = "select tool_policies::text from account where id = 'acme'";

async fn working() -> (World, Tenant) {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    (world, tenant)
}

impl World {
    async fn policy(&self, tenant: &Tenant, kind: &str, id: &str, tool: &str) -> Answer {
        let body = json!({"scope": {"kind": kind, "id": id}, "tool": tool, "verdict": "deny"});
        self.post(&tenant.admin, &tenant.path("/tool-policies"), body).await
    }

    async fn policy_put(&self, tenant: &Tenant, policy: &str, body: Value) -> Answer {
        let path = tenant.path(&format!("/tool-policies/{policy}"));
        self.put(&tenant.admin, &path, body).await
    }
}

fn is(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status.as_u16(), status, "{answer:?}");
    assert_eq!(answer.body["code"], code, "{answer:?}");
}

#[tokio::test]
async fn a_policy_is_made_changed_and_removed() {
    let (world, tenant) = working().await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    let session = seed::session(&world, &tenant, "PROJ-7", &coder, 1, true)
        .await
        .to_string();
    for (place, (kind, id, expected)) in [
        ("account", "acme", "acme"),
        ("agent", "coder", &*coder),
        ("agent", &coder, &coder),
        ("task", "Proj-7", "proj-7"),
        ("session", &session, &session),
    ]
    .into_iter()
    .enumerate()
    {
        let made = world.policy(&tenant, kind, id, &format!("tool_{place}*")).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
        let scope = json!({"kind": kind, "id": expected});
        assert_eq!((&made.body["scope"], &made.body["verdict"]), (&scope, &json!("deny")));
        assert_eq!(
            (&made.body["revision"], &made.body["by"]["name"], &made.body["visible"]),
            (&json!(1), &json!("a admin"), &Value::Null)
        );
    }
    assert_eq!(world.test.texts(COUNT).await, ["5"]);
    let listed = world
        .get(
            &tenant.member,
            &tenant.path("/tool-policies?scope=task&scope_id=proj-7"),
        )
        .await;
    let policy = listed.body["items"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(listed.body["items"].as_array().unwrap().len(), 1);

    let changed = world
        .policy_put(&tenant, &policy, json!({"revision": 1, "visible": false}))
        .await;
    assert_eq!(changed.status, StatusCode::OK, "{changed:?}");
    assert_eq!(
        (
            &changed.body["visible"],
            &changed.body["verdict"],
            &changed.body["revision"]
        ),
        (&json!(false), &Value::Null, &json!(2)),
        "what is absent is no longer said"
    );
    let late = world
        .policy_put(&tenant, &policy, json!({"revision": 1, "visible": true}))
        .await;
    is(&late, 409, "policy_changed");
    assert!(late.body["detail"].as_str().unwrap().contains("revision 2"), "{late:?}");

    let path = tenant.path(&format!("/tool-policies/{policy}"));
    assert_eq!(world.delete(&tenant.admin, &path).await.status, StatusCode::NO_CONTENT);
    assert_eq!(world.delete(&tenant.admin, &path).await.status, StatusCode::NOT_FOUND);
    let gone = world
        .policy_put(&tenant, &policy, json!({"revision": 2, "visible": true}))
        .await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert_eq!(world.test.texts(COUNT).await, ["4"]);

    let events = world.sent_on("signalbox.event.acme.-.tool_policy.changed").await;
    let told = events.iter().map(|event| &event.payload["data"]);
    let told: Vec<Value> = told
        .filter(|data| data["policy_id"] == json!(policy))
        .map(|data| json!([data["revision"], data["removed"], data["by"]["name"]]))
        .collect();
    let expected = [
        json!([1, false, "a admin"]),
        json!([2, false, "a admin"]),
        json!([2, true, "a admin"]),
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_policy_that_cannot_hold_is_refused() {
    let (world, tenant) = working().await;
    let missing = "0190b5a8-0000-7000-8000-000000000001";
    for (kind, id) in [
        ("account", "globex"),
        ("agent", "nobody"),
        ("agent", missing),
        ("task", "PROJ-8"),
        ("session", missing),
        ("session", "proj-7"),
        ("task_agent", "proj-7/x"),
    ] {
        let refused = world.policy(&tenant, kind, id, "*").await;
        is(&refused, 422, "unknown_scope");
    }
    let path = tenant.path("/tool-policies");
    let account = json!({"kind": "account", "id": "acme"});
    for terms in [
        json!({"verdict": "allow", "audience": ["role:admin"]}),
        json!({"verdict": "ask", "audience": ["rule:r"]}),
    ] {
        let mut body = json!({"scope": account, "tool": "*"});
        body.as_object_mut().unwrap().extend(terms.as_object().unwrap().clone());
        is(&world.post(&tenant.admin, &path, body).await, 422, "invalid");
    }
    let silent = json!({"scope": account, "tool": "*"});
    is(&world.post(&tenant.admin, &path, silent).await, 422, "invalid");
    let bad = json!({"scope": account, "tool": "task status", "verdict": "deny"});
    assert_eq!(
        world.post(&tenant.admin, &path, bad).await.status,
        StatusCode::BAD_REQUEST
    );

    let made = world.policy(&tenant, "account", "acme", "*").await;
    let again = world.policy(&tenant, "account", "acme", "*").await;
    is(&again, 409, "policy_exists");
    let detail = again.body["detail"].as_str().unwrap();
    assert!(detail.contains(made.body["id"].as_str().unwrap()), "{detail}");

    for key in [&tenant.member, &tenant.service] {
        let body = json!({"scope": account, "tool": "no_reply", "verdict": "deny"});
        let refused = world.post(key, &path, body).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    }
    assert_eq!(world.test.texts(COUNT).await, ["1"]);
}

/// What can hold for nothing any more goes first, and says so.
#[tokio::test]
async fn an_account_has_a_limited_number_of_policies() {
    let (world, tenant) = working().await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    let open = seed::session(&world, &tenant, "PROJ-7", &coder, 2, true)
        .await
        .to_string();
    let closed = seed::session(&world, &tenant, "PROJ-7", &coder, 1, false)
        .await
        .to_string();
    for (session, tool) in [(&open, "task_*"), (&closed, "task_*"), (&closed, "no_*")] {
        let made = world.policy(&tenant, "session", session, tool).await;
        assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    }
    let more = POLICIES_MAX - 3;
    rows("tool_policy")
        .set("tool", "'tool_' || n")
        .from(format!("generate_series(1, {more}) n"))
        .insert(&world.test.owner)
        .await;
    let made = world.policy(&tenant, "account", "acme", "one_more").await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let sessions = "select scope_id from tool_policy where scope_kind = 'session'";
    assert_eq!(world.test.texts(sessions).await, [open]);
    let removed = world.sent_on("signalbox.event.acme.-.tool_policy.changed").await;
    let removed = removed.iter().filter(|event| event.payload["data"]["removed"] == true);
    assert_eq!(removed.count(), 2);

    let made = world.policy(&tenant, "account", "acme", "the_last").await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
    let full = world.policy(&tenant, "account", "acme", "too_many").await;
    is(&full, 409, "too_many_policies");
    assert_eq!(world.test.texts(COUNT).await, [POLICIES_MAX.to_string()]);
}

/// A tool call of `coder` on PROJ-7 that somebody is asked about.
async fn asked(world: &World, tenant: &Tenant, arguments: &str) -> String {
    let coder = match world.test.texts("select id::text from agent").await.pop() {
        Some(coder) => coder,
        None => {
            let coder = world.agent(tenant, "coder").await;
            world.task(tenant, "PROJ-7", &[]).await;
            seed::busy(world, tenant, "PROJ-7", &coder).await;
            coder
        }
    };
    let (account, id) = (domain::AccountId::parse("acme").unwrap(), uuid::Uuid::now_v7());
    sqlx::query(
        "insert into question (account_id, id, kind, task_id, session_id, session_kind, generation, agent_id, tool_call, title, body,
                               audience, tool, arguments, arguments_hash, schema_hash)
         select $1, $2, 'tool', 'proj-7', s.id, 'task', 1, $3::uuid, gen_random_uuid(), 't', 'b', '{role:member}', 'task_message', $4, $5,
                '\\x01' from session s where s.account_id = $1",
    )
    .bind(account.as_str())
    .bind(id)
    .bind(&coder)
    .bind(arguments)
    .bind(&domain::tool_policy::arguments_hash("task_message", arguments)[..])
    .execute(&world.test.owner)
    .await
    .unwrap();
    id.to_string()
}

#[tokio::test]
async fn an_approval_for_other_arguments_is_refused() {
    let (world, tenant) = working().await;
    let (call, other) = (r#"{"body": "one"}"#, r#"{"body": "two"}"#);
    let question = asked(&world, &tenant, call).await;
    let path = tenant.path(&format!("/questions/{question}"));
    let read = world.get(&tenant.member, &path).await;
    assert_eq!(
        (&read.body["tool"], &read.body["arguments"]),
        (&json!("task_message"), &json!(call))
    );
    let hash = |arguments: &str| -> String {
        let hash = domain::tool_policy::arguments_hash("task_message", arguments);
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    assert_eq!(read.body["arguments_hash"], hash(call));
    let answer = async |body: Value| world.post(&tenant.member, &format!("{path}/answer"), body).await;
    is(&answer(json!({"verdict": "approved"})).await, 422, "invalid_answer");
    let changed = json!({"verdict": "approved", "arguments_hash": hash(other)});
    is(&answer(changed).await, 409, "arguments_changed");
    is(
        &answer(json!({"verdict": "denied", "remember": true})).await,
        422,
        "invalid_answer",
    );
    assert_eq!(world.test.texts("select state from question").await, ["open"]);
    // Its turn looks again in minutes; with the answer in seconds, whatever becomes of the message.
    let waits = "update session set phase = 'waiting', wake_at = now() + interval '5 minutes'";
    sqlx::query(waits).execute(&world.test.owner).await.unwrap();
    let approved = answer(json!({"verdict": "approved", "arguments_hash": hash(call)})).await;
    assert_eq!(approved.status, StatusCode::OK, "{approved:?}");
    is(&answer(json!({"verdict": "denied"})).await, 409, "already_answered");
    let wakes = world.sent_on("signalbox.tool.approved.acme.PROJ-7").await;
    assert_eq!(wakes.len(), 1, "the call is woken once");
    let soon = "select count(*) from session where wake_at <= now() + interval '30 seconds'";
    assert_eq!(world.test.count(soon).await, 1);
    assert_eq!(world.test.count("select count(*) from tool_policy").await, 0);
}

#[tokio::test]
async fn an_approval_is_remembered_for_agent_task_tool_and_schema() {
    let (world, tenant) = working().await;
    let hash = |arguments: &str| -> String {
        let hash = domain::tool_policy::arguments_hash("task_message", arguments);
        hash.iter().map(|byte| format!("{byte:02X}")).collect()
    };
    for arguments in ["{}", r#"{"b": 2}"#] {
        let question = asked(&world, &tenant, arguments).await;
        let body = json!({"verdict": "approved", "arguments_hash": hash(arguments), "remember": true});
        let path = tenant.path(&format!("/questions/{question}/answer"));
        let approved = world.post(&tenant.member, &path, body).await;
        assert_eq!(approved.status, StatusCode::OK, "{approved:?}");
    }
    let rows = "select concat_ws(' ', p.scope_kind, p.scope_id = 'proj-7/' || a.id, tool, verdict, encode(schema_hash, 'hex'), revision)
                from tool_policy p, agent a";
    assert_eq!(
        world.test.texts(rows).await,
        ["task_agent t task_message allow 01 2"],
        "the second renews it"
    );
    // A rule that an admin has made of it meanwhile stays, and the question stays open.
    let id = world.test.texts("select id::text from tool_policy").await.remove(0);
    let denied = world
        .policy_put(&tenant, &id, json!({"verdict": "deny", "revision": 2}))
        .await;
    assert_eq!(denied.status, StatusCode::OK, "{denied:?}");
    let arguments = r#"{"b": 3}"#;
    let question = asked(&world, &tenant, arguments).await;
    let body = json!({"verdict": "approved", "arguments_hash": hash(arguments), "remember": true});
    let path = tenant.path(&format!("/questions/{question}/answer"));
    is(&world.post(&tenant.member, &path, body).await, 409, "policy_exists");
    let open = "select state from question where state <> 'answered'";
    assert_eq!(world.test.texts(open).await, ["open"]);
    assert_eq!(world.test.texts("select verdict from tool_policy").await, ["deny"]);
    assert_eq!(world.test.texts(COUNT).await, ["1"]);
}
