//! Artifacts through the services: an upload whose answer was lost is the same upload when it is repeated, whatever its service died of.

use reqwest::{Client, StatusCode};
use serde_json::Value;
use storage::Role;
use testkit::{OPERATOR_TOKEN, Reply};

use crate::house::House;

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_survives_a_death_before_and_after_its_commit() {
    let mut house = House::open(|_| Reply::text("ok")).await;
    house.account("acme").await;
    house.task("acme", "T-1", &[]).await;
    let client = Client::new();
    for (point, content) in [
        ("orchestrator.change_written", "one"),
        ("orchestrator.change_committed", "two"),
    ] {
        let upload = |house: &House| {
            let url = format!("{}/api/orgs/acme/tasks/T-1/artifacts?name={content}", house.api());
            let request = client
                .post(url)
                .bearer_auth(OPERATOR_TOKEN)
                .header("idempotency-key", content);
            request.body(content).send()
        };
        house.running(Role::Orchestrator).crash_at(point, 1);
        tokio::select! {
            // A request that was cut off may still get a 503.
            biased;
            () = house.running(Role::Orchestrator).crashed() => {}
            answer = upload(&house) => panic!("{point}: {answer:?}"),
        }
        house.kill(Role::Orchestrator);
        house.up().await;
        let answer = upload(&house).await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED, "{point}");
        let id = answer.json::<Value>().await.unwrap()["id"].take();
        let again = upload(&house).await.unwrap().json::<Value>().await.unwrap();
        assert_eq!(again["id"], id, "{point}");
    }
    let listed = house.get("/api/orgs/acme/tasks/T-1/artifacts").await;
    let names: Vec<&str> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(names, ["one", "two"]);
    let room = "select a.artifact_bytes || ' ' || sum(octet_length(c.content)) from account a join artifact_content c on c.account_id = a.id group by a.id";
    assert_eq!(house.world.database.texts(room).await, ["6 6"]);
    house.close().await;
}
