//! `/agent/*` for agents without tool support (S10), right after a restart: a live key works; a closed, a foreign and an invented
//! key do not, and the last two get the same answer.

use reqwest::{Method, StatusCode};
use serde_json::json;
use storage::Role;
use testkit::Reply;

use crate::house::House;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_checked_against_the_database_right_after_a_restart() {
    let mut house = House::open(|_| Reply::text("ok")).await;
    let mut keys = Vec::new();
    for account in ["acme", "other"] {
        house.account(account).await;
        house.agent(account, "coder").await;
        for task in ["T-1", "T-2"] {
            house.task(account, task, &[]).await;
            let id = format!("{account}-{task}");
            house.notify(account, task, "coder", &id, "x").await;
            keys.push(
                house.until(account, &id, "delivered").await["session_key"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    house.status("acme", "T-2", "done").await;
    let token = house.key("acme", "gateway").await;
    house.kill(Role::ToolGateway);
    house.up().await;

    let history = async |key: &str, token: &str| {
        let url = format!("{}/agent/task-history", house.agent_api());
        house
            .call(
                Method::POST,
                url,
                token,
                &[("x-openclaw-session-key", key)],
                Some(json!({"task_id": "T-1"})),
            )
            .await
    };
    let live = keys[0].clone();
    let (status, body) = history(&live, &token).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert!(body.to_string().contains("T-1"));
    // In a gateway's spelling.
    let (status, _) = history(&format!("agent:alpha:{}", live.to_uppercase()), &token).await;
    assert_eq!(status, StatusCode::OK);

    let (closed, _) = history(&keys[1], &token).await;
    assert!(closed.is_client_error());
    let (foreign, foreign_body) = history(&keys[2], &token).await;
    let made_up = live.replace(":v1", ":v9");
    let (unknown, unknown_body) = history(&made_up, &token).await;
    assert!(foreign.is_client_error() && foreign == unknown, "{foreign} {unknown}");
    assert_eq!(foreign_body["detail"], unknown_body["detail"]);
    assert_eq!(foreign_body["code"], unknown_body["code"]);
    let (nobody, _) = history(&live, "sbx_acme_0_0_0").await;
    assert_eq!(nobody, StatusCode::UNAUTHORIZED);
    // Other keys of the account do not open these routes, and this key opens no others.
    let member = house.key("acme", "member").await;
    assert!(history(&live, &member).await.0.is_client_error());
    let (status, _) = house
        .call(
            Method::GET,
            format!("{}/api/orgs/acme/tasks/T-1", house.api()),
            &token,
            &[],
            None,
        )
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);

    let (status, tools) = house
        .call(
            Method::GET,
            format!("{}/agent/tools", house.agent_api()),
            &token,
            &[("x-openclaw-session-key", &live)],
            None,
        )
        .await;
    assert_eq!(status, StatusCode::OK);
    assert!(tools.to_string().contains("task_history"));
    house.close().await;
}
