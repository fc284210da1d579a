//! Providers over the API: tenants see which of theirs take no calls, the operator sees why and what waits, and tries one at once.

use serde_json::{Value, json};
use storage::breaker::breaker_ref;
use testkit::rows;

use crate::{
    seed,
    world::{OPERATOR, World},
};

const OPEN: &str = "insert into provider_breaker (key, state, epoch, class, detail, reset_at, probe_at, opens, providers) values
    ('team', 'open', 1, 'quota', 'the account of the team is empty', now() + interval '2 hours', now() + interval '2 hours', 1, '{gpt,gpt-mini}'),
    ('fine', 'closed', 2, 'server_error', 'HTTP 500', null, null, 0, '{other}')";

async fn world() -> World {
    let world = World::new().await;
    world.execute(OPEN).await;
    world
}

#[tokio::test]
async fn a_tenant_sees_its_own_providers_without_details() {
    let world = world().await;
    let tenant = world.tenant("acme").await;
    world.tenant("globex").await;
    for slug in ["gpt", "other", "third"] {
        world.agent(&tenant, slug).await;
    }
    world.execute("update agent set provider = slug").await;
    let answer = world.get(&tenant.member, &tenant.path("/providers")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let shown: Vec<String> = answer.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            format!(
                "{} {} {} {}",
                item["name"],
                item["state"],
                item["class"],
                item["until"].is_string()
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            r#""gpt" "open" "quota" true"#,
            r#""other" "closed" null false"#,
            r#""third" "closed" null false"#
        ]
    );
    let text = answer.body.to_string();
    assert!(
        !text.contains("empty") && !text.contains("HTTP 500") && !text.contains("team"),
        "{text}"
    );
    for path in ["/api/providers", "/api/providers/team/probe"] {
        let answer = match path.ends_with("probe") {
            true => world.post(&tenant.admin, path, json!({})).await,
            false => world.get(&tenant.admin, path).await,
        };
        assert_eq!(answer.status, 403, "{path} {answer:?}");
    }
}

#[tokio::test]
async fn a_provider_of_many_agents_hides_no_other() {
    let world = world().await;
    let tenant = world.tenant("acme").await;
    let many = "(select 'gpt' as provider, generate_series(1, 2500) n union all select 'other', 0) a";
    rows("agent")
        .with("account_id", "acme")
        .set("slug", "'a' || n")
        .set("provider", "a.provider")
        .from(many)
        .insert(&world.test.owner)
        .await;
    let answer = world.get(&tenant.member, &tenant.path("/providers")).await;
    let names: Vec<&Value> = answer.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["name"])
        .collect();
    assert_eq!(names, ["gpt", "other"]);
}

#[tokio::test]
async fn the_operator_sees_what_waits_and_tries_at_once() {
    let world = world().await;
    let tenant = world.tenant("acme").await;
    let coder = world.agent(&tenant, "coder").await;
    world.task(&tenant, "PROJ-7", &[]).await;
    seed::session(&world, &tenant, "PROJ-7", &coder, 1, true).await;
    let parked = format!(
        "update session set phase = 'backoff', gate = 'provider', gate_ref = '{}'",
        breaker_ref("team")
    );
    world.execute(parked).await;
    let answer = world.get(OPERATOR, "/api/providers").await;
    let keys = |name: &str| -> Vec<Value> {
        let items = answer.body["items"].as_array().unwrap();
        items.iter().map(|item| item[name].clone()).collect()
    };
    assert_eq!(keys("key"), [json!("fine"), json!("team")]);
    assert_eq!(keys("parked"), [json!(0), json!(1)]);
    assert_eq!(
        keys("detail"),
        [json!("HTTP 500"), json!("the account of the team is empty")]
    );

    let due = "select (probe_at <= now())::text from provider_breaker where key = 'team'";
    assert_eq!(world.test.texts(due).await, ["false"]);
    let answer = world.post(OPERATOR, "/api/providers/team/probe", json!({})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["state"]),
        (200, &json!("open")),
        "{answer:?}"
    );
    assert_eq!(world.test.texts(due).await, ["true"]);
    let answer = world.post(OPERATOR, "/api/providers/fine/probe", json!({})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["state"]),
        (200, &json!("closed")),
        "{answer:?}"
    );
    let answer = world.post(OPERATOR, "/api/providers/none/probe", json!({})).await;
    assert_eq!(answer.status, 404);
}
