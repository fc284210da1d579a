//! The routing log: who sees which mail, and the steps of a notification.

use serde_json::{Value, json};
use testkit::Tenant as Furnished;

use crate::{members::member, world::World};

#[tokio::test]
async fn the_log_has_mail_for_those_whom_it_concerns() {
    let world = World::new().await;
    let tenant = world.tenant("acme").await;
    let ann = member(&world, &tenant, "ann", "member").await;
    let ben = member(&world, &tenant, "ben", "member").await;
    let cyd = member(&world, &tenant, "cyd", "admin").await;
    for to in ["@user:ben", "orchestrator:ann"] {
        let mail = json!({"to": to, "content": "the-secret"});
        assert_eq!(world.post(&ann, "/api/messages", mail).await.status, 201);
    }
    let log = async |key: &str, query: &str| world.get(key, &tenant.path(&format!("/routing-log?{query}"))).await;
    let count = async |key: &str, query: &str, expected: usize| {
        let found = log(key, query).await;
        assert_eq!(found.column("id").len(), expected, "{query}: {found:?}");
        assert!(!found.body.to_string().contains("the-secret"), "{found:?}");
    };
    count(&ann, "", 2).await;
    // What was written to a person is theirs and the sender's; what was written to an orchestrator, its person's and the admins'.
    count(&ben, "source=mail", 1).await;
    count(&cyd, "", 1).await;
    count(&ann, "user=ben", 1).await;
    count(&ann, "user=cyd", 0).await;
    count(&cyd, "user=ann", 1).await;
    count(&ann, "since=2999-01-01T00:00:00Z", 0).await;
    let first = log(&ann, "").await;
    assert_eq!(first.body["items"][0]["to"]["session_key"], "orchestrator:acme:ann:v1");
    assert_eq!(
        (
            &first.body["items"][1]["to"]["id"],
            &first.body["items"][1]["notification_id"]
        ),
        (&json!("ben"), &Value::Null)
    );
    let page = log(&ann, "limit=1").await;
    let cursor = page.body["next_cursor"].as_str().unwrap();
    count(&ann, &format!("limit=1&cursor={cursor}"), 1).await;
    log(&ann, "source=dream").await.is_problem(400, "invalid_field", "");
    world
        .execute("update account set orchestrators_visible_to_admins = false")
        .await;
    count(&cyd, "", 0).await;

    let item = first.body["items"][0]["notification_id"].as_str().unwrap();
    let route = tenant.path(&format!("/notifications/{item}/route"));
    world.get(&cyd, &route).await.is_problem(404, "not_found", "");
    world.get(&ben, &route).await.is_problem(404, "not_found", "");
}

#[tokio::test]
async fn a_route_is_told_from_the_rows_that_are_there() {
    let world = World::new().await;
    let tenant = Furnished::furnish(&world.test.owner, "acme").await;
    let of = async |whose: &str| -> String {
        let sql = format!(
            "select id from notification where state = 'delivered' and turn_id is not null and {whose} order by id limit 1"
        );
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&world.test.owner)
            .await
            .unwrap()
    };
    let id = of("user_id is null").await;
    let path = format!("/api/orgs/acme/notifications/{id}/route");
    let steps = world.get(&tenant.keys["member"], &path).await;
    assert_eq!(steps.status, 200, "{steps:?}");
    let named: Vec<&str> = steps
        .body
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["step"].as_str().unwrap())
        .collect();
    assert!(named.contains(&"session") && named.ends_with(&["turn"]), "{steps:?}");
    // A link that is lost is said to be.
    world
        .execute(format!(
            "update notification set turn_id = gen_random_uuid() where id = '{id}'"
        ))
        .await;
    let lost = world.get(&tenant.keys["member"], &path).await;
    let last = lost.body.as_array().unwrap().last().unwrap();
    assert!(last["because"].as_str().unwrap().contains("retention"), "{last}");
    let nothing = world
        .get(&tenant.keys["member"], "/api/orgs/acme/notifications/no-such/route")
        .await;
    nothing.is_problem(404, "not_found", "");
}
