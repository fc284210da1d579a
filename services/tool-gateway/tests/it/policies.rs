//! Tool policies at the call: a denied call has no effect, on the bus and over HTTP, also if its turn was offered the tool.

use domain::ToolCallState::Refused;
use reqwest::StatusCode;
use serde_json::{Value, json};
use testkit::rows;

use crate::world::{TestSession, World};

impl World {
    pub(crate) async fn policy(&self, (scope, id): (&str, &str), tool: &str, terms: &[(&'static str, &'static str)]) {
        let row = rows("tool_policy")
            .with("scope_kind", scope)
            .with("scope_id", id)
            .with("tool", tool);
        let row = terms.iter().fold(row, |row, (column, value)| row.with(column, *value));
        row.insert(&self.database.owner).await;
        let count =
            "update account a set tool_policies = (select count(*) from tool_policy p where p.account_id = a.id)";
        self.run(sqlx::query(count)).await;
    }
}

fn post(session: &TestSession, ordinal: i32, body: &str) -> contracts::tool::ToolRequested {
    let arguments = json!({"task_id": "PROJ-7", "body": body});
    session.request(ordinal, "task_message", &arguments)
}

#[tokio::test]
async fn a_policy_made_after_the_offer_denies_the_call() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let (coder, other) = (world.coder("acme").await, world.coder("globex").await);
    world.call(&post(&coder, 1, "before")).await.ok();
    world
        .policy(("agent", &coder.agent.to_string()), "task_m*", &[("verdict", "deny")])
        .await;
    world
        .policy(("task", "proj-7"), "task_message", &[("verdict", "allow")])
        .await;
    let denied = world.call(&post(&coder, 2, "after")).await;
    assert_eq!(denied.code(Refused), "denied");
    assert!(!denied.late);
    world.call(&coder.request(3, "no_reply", &json!({}))).await.ok();
    world.call(&post(&other, 1, "of another account")).await.ok();
    let bodies = world
        .database
        .texts("select body from message order by created_at")
        .await;
    assert_eq!(bodies, ["before", "of another account"]);
    world.end(&[&gateway]).await;
}

#[tokio::test]
async fn over_http_a_policy_hides_and_denies() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let coder = world.coder("acme").await;
    let token = world.api_key(&coder.account, "gateway").await;
    let base = format!("http://{}", gateway.address);
    let client = reqwest::Client::new();
    let of = |request: reqwest::RequestBuilder| {
        let request = request.bearer_auth(&token).header("x-openclaw-session-key", &coder.key);
        async move {
            let response = request.send().await.unwrap();
            let status = response.status();
            (status, response.json::<Value>().await.unwrap())
        }
    };
    let post = |tool: &str, body: Value| of(client.post(format!("{base}/agent/tools/{tool}")).body(body.to_string()));
    let names = async || {
        let (_, list) = of(client.get(format!("{base}/agent/tools"))).await;
        let items = list["items"].as_array().unwrap().clone();
        items
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    world
        .policy(("account", "acme"), "task_message", &[("visible", "false")])
        .await;
    world
        .policy(("account", "acme"), "task_status", &[("verdict", "deny")])
        .await;
    // Its turn was offered both.
    assert_eq!(
        names().await,
        [
            "task_history",
            "task_message",
            "task_context_read",
            "task_context_write",
            "response_request",
            "check_later",
            "ask_question",
            "answer_question",
            "withdraw_question",
            "submit_plan",
            "subagent_spawn",
            "subagent_list",
            "subagent_cancel",
            "no_reply"
        ]
    );
    let message = json!({"task_id": "PROJ-7", "body": "b"});
    assert_eq!(post("task_message", message.clone()).await.0, StatusCode::OK);
    let (status, denied) = post("task_status", json!({"task_id": "PROJ-7", "status": "review"})).await;
    assert_eq!((status, &denied["code"]), (StatusCode::FORBIDDEN, &json!("denied")));

    world
        .run(sqlx::query("update turn set state = 'finished', finished_at = now()"))
        .await;
    world
        .run(sqlx::query("update session set active_turn_id = null, phase = 'idle'"))
        .await;
    let left = names().await;
    assert!(
        !left.iter().any(|name| name == "task_message" || name == "task_status"),
        "{left:?}"
    );
    let (status, hidden) = post("task_message", message).await;
    assert_eq!(
        (status, &hidden["code"]),
        (StatusCode::FORBIDDEN, &json!("not_offered"))
    );
    assert_eq!(world.database.count("select count(*) from message").await, 1);
    gateway.stop().await;
}
