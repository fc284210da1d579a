//! Accounts, their settings, and keys.

use serde_json::{Value, json};

use crate::world::{OPERATOR, World};

#[tokio::test]
async fn the_operator_makes_and_lists_accounts() {
    let world = World::new().await;
    let made = world
        .post(OPERATOR, "/api/accounts", json!({"id": "acme", "name": "Acme"}))
        .await;
    assert_eq!(made.status, 201);
    assert_eq!((&made.body["id"], &made.body["name"]), (&json!("acme"), &json!("Acme")));
    assert_eq!(made.body["session_scope"], "task");
    let again = world
        .post(OPERATOR, "/api/accounts", json!({"id": "acme", "name": "Other"}))
        .await;
    again.is_problem(409, "account_exists", "acme");
    for bad in [
        json!({"id": "ACME", "name": "n"}),
        json!({"id": "-", "name": "n"}),
        json!({"id": "a", "name": ""}),
        json!({"id": "org", "name": "n"}),
    ] {
        world
            .post(OPERATOR, "/api/accounts", bad)
            .await
            .is_problem(400, "invalid_field", "");
    }

    for id in ["zeta", "beta"] {
        world
            .post(OPERATOR, "/api/accounts", json!({"id": id, "name": id}))
            .await;
    }
    let first = world.get(OPERATOR, "/api/accounts?limit=2").await;
    assert_eq!(first.column("id"), ["acme", "beta"]);
    let cursor = first.body["next_cursor"].as_str().unwrap();
    let second = world
        .get(OPERATOR, &format!("/api/accounts?limit=2&cursor={cursor}"))
        .await;
    assert_eq!(second.column("id"), ["zeta"]);
    assert!(second.body["next_cursor"].is_null());
}

#[tokio::test]
async fn admins_choose_how_their_account_works() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    world.task(&tenant, "HQ", &[]).await;
    let change = json!({"name": "Acme Ltd", "session_scope": "agent", "instruction_layout": "inline",
        "auto_create_tasks": false, "coordinator_task": "hq", "briefing": "We build.", "turns_in_flight_max": 3,
        "context_policy": "assembled", "task_context_layer": "always"});
    let changed = world.patch(&tenant.admin, &tenant.path(""), change.clone()).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    let read = world.get(&tenant.admin, &tenant.path("")).await;
    assert_eq!(read.body, changed.body);
    for (name, value) in change.as_object().unwrap() {
        assert_eq!(&read.body[name], value, "{name}");
    }
    let nulls = json!({"coordinator_task": null, "turns_in_flight_max": null});
    let cleared = world.patch(&tenant.admin, &tenant.path(""), nulls).await;
    assert!(cleared.body["coordinator_task"].is_null() && cleared.body["turns_in_flight_max"].is_null());
    assert_eq!(cleared.body["briefing"], "We build.", "what is absent stays");

    let unknown = world
        .patch(&tenant.admin, &tenant.path(""), json!({"coordinator_task": "nowhere"}))
        .await;
    unknown.is_problem(400, "unknown_task", "nowhere");
    let typo = world
        .patch(&tenant.admin, &tenant.path(""), json!({"breifing": "x"}))
        .await;
    typo.is_problem(400, "invalid_field", "unknown field `breifing`");
}

#[tokio::test]
async fn a_key_is_shown_once_kept_as_a_digest_and_can_be_revoked() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let made = world
        .post(
            &tenant.admin,
            &tenant.path("/keys"),
            json!({"name": "CI", "role": "service"}),
        )
        .await;
    assert_eq!(made.status, 201);
    let (key, id) = (made.body["key"].as_str().unwrap(), made.body["id"].as_str().unwrap());
    assert!(key.starts_with("sbx_acme_"));
    assert_eq!(world.get(key, &tenant.path("/agents")).await.status, 200);

    let secret = key.split('_').nth(3).unwrap();
    for table in ["api_key", "idempotency", "outbox"] {
        let rows = sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(format!("select {table}::text from {table}")))
            .fetch_all(&world.test.owner)
            .await
            .unwrap();
        assert!(rows.iter().all(|row| !row.contains(secret)), "{table}");
    }
    let list = world.get(&tenant.admin, &tenant.path("/keys")).await;
    assert_eq!(
        list.column("name"),
        ["a admin", "a member", "a service", "a publisher", "a gateway", "CI"]
    );
    assert!(!list.body.to_string().contains(secret));

    assert_eq!(
        world
            .delete(&tenant.admin, &tenant.path(&format!("/keys/{id}")))
            .await
            .status,
        204
    );
    world
        .get(key, &tenant.path("/agents"))
        .await
        .is_problem(401, "unauthorized", "");
    world
        .delete(&tenant.admin, &tenant.path(&format!("/keys/{id}")))
        .await
        .is_problem(404, "not_found", "");
    assert_eq!(
        world
            .get(&tenant.admin, &tenant.path("/keys"))
            .await
            .column("name")
            .len(),
        5
    );

    let bad = world
        .post(
            &tenant.admin,
            &tenant.path("/keys"),
            json!({"name": "x", "role": "root"}),
        )
        .await;
    bad.is_problem(400, "invalid_field", "role:");
}

#[tokio::test]
async fn a_key_that_was_made_for_a_time_is_worth_nothing_after_it() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let make = async |expires_at: &str| {
        let body = json!({"name": "CI", "role": "service", "expires_at": expires_at});
        world.post(&tenant.admin, &tenant.path("/keys"), body).await
    };
    make("2001-01-01T00:00:00Z")
        .await
        .is_problem(400, "invalid_field", "expires_at");
    let made = make("2999-01-01T00:00:00Z").await;
    assert_eq!(
        (made.status.as_u16(), &made.body["expires_at"]),
        (201, &json!("2999-01-01T00:00:00Z"))
    );
    let key = made.body["key"].as_str().unwrap();
    assert_eq!(world.get(key, &tenant.path("/agents")).await.status, 200);

    sqlx::query("update api_key set created_at = now() - interval '2 s', expires_at = now() - interval '1 s' where expires_at is not null")
        .execute(&world.test.owner)
        .await
        .unwrap();
    world
        .get(key, &tenant.path("/agents"))
        .await
        .is_problem(401, "unauthorized", "");
    let list = world.get(&tenant.admin, &tenant.path("/keys")).await;
    assert_eq!(list.column("name").len(), 6, "it is listed until it is revoked");
    for never in [
        "9999-12-31T23:59:59-23:59",
        "9999-12-31T23:59:59-00:01",
        "0000-01-01T00:00:00+23:59",
    ] {
        make(never)
            .await
            .is_problem(400, "invalid_field", "outside of the years 1 to 9999");
    }
    assert_eq!(make("9999-12-31T23:59:59+23:59").await.status, 201);
}

#[tokio::test]
async fn a_gateways_key_may_be_for_one_agent() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let agent = json!({"slug": "coder", "name": "Coder"});
    let agent = world.post(&tenant.admin, &tenant.path("/agents"), agent).await;
    let make = async |role: &str, agent: &Value| {
        let body = json!({"name": "G", "role": role, "agent": agent});
        world.post(&tenant.admin, &tenant.path("/keys"), body).await
    };
    for named in [&json!("coder"), &agent.body["id"]] {
        let made = make("gateway", named).await;
        assert_eq!(
            (made.status.as_u16(), &made.body["agent_id"]),
            (201, &agent.body["id"]),
            "{named}"
        );
    }
    let made = make("gateway", &Value::Null).await;
    assert_eq!((made.status.as_u16(), &made.body["agent_id"]), (201, &Value::Null));
    make("service", &json!("coder"))
        .await
        .is_problem(400, "invalid_field", "agent:");
    make("gateway", &json!("Not A Slug"))
        .await
        .is_problem(400, "invalid_field", "agent:");
    make("gateway", &json!("nobody"))
        .await
        .is_problem(400, "unknown_agent", "nobody");
    let list = world.get(&tenant.admin, &tenant.path("/keys")).await;
    let bound = list.column("agent_id").iter().filter(|agent| *agent != "null").count();
    assert_eq!(bound, 2, "{}", list.body);
}
