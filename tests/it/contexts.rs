//! The context of a task through all services: an agent writes it once however often its call is delivered, a person corrects it, and
//! the agent reads the correction.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use storage::Role;
use testkit::{OPERATOR_TOKEN, Reply, Seen, eventually};

use crate::house::House;

/// An agent that writes or reads the context when it is told to.
async fn house() -> House {
    let script = |seen: &Seen| {
        let (input, answered) = (seen.input(), !seen.tool_outputs().is_empty());
        match () {
            () if input.contains("PLEASE WRITE") && !answered => {
                Reply::call("c-1", "task_context_write", json!({"body": "Build the parser."}))
            }
            () if input.contains("PLEASE READ") && !answered => Reply::call("c-1", "task_context_read", json!({})),
            () => Reply::text("ok"),
        }
    };
    // A call that was lost comes again soon.
    let house = House::open_with(script, &[("nats.limits.ack_wait_ms", "1000")]).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    house
}

impl House {
    async fn context(&self) -> Value {
        self.get("/api/orgs/acme/tasks/T-1/context").await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_one_version_though_its_service_dies_on_either_side_of_the_commit() {
    for (point, left) in [("tool_gateway.effect_written", 0), ("tool_gateway.effect_committed", 1)] {
        let mut house = house().await;
        house.running(Role::ToolGateway).crash_at(point, 1);
        house.notify("acme", "T-1", "coder", "n-1", "PLEASE WRITE").await;
        house.running(Role::ToolGateway).crashed().await;
        house.kill(Role::ToolGateway);
        let versions = "select count(*) from task_context";
        assert_eq!(house.world.database.count(versions).await, left, "{point}");
        house.up().await;
        house.until("acme", "n-1", "delivered").await;
        assert_eq!(house.world.database.count(versions).await, 1, "{point}");
        let context = house.context().await;
        assert_eq!(
            (&context["version"], &context["body"]),
            (&json!(1), &json!("Build the parser."))
        );
        assert_eq!(context["author"]["name"], "coder");
        let activities = "select count(*) from activity where kind = 'task_context.written'";
        assert_eq!(house.world.database.count(activities).await, 1, "{point}");
        house.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_reads_what_a_person_has_corrected() {
    let house = house().await;
    house.notify("acme", "T-1", "coder", "n-1", "PLEASE WRITE").await;
    house.until("acme", "n-1", "delivered").await;
    let version = house.context().await["version"].take();
    let url = format!("{}/api/orgs/acme/tasks/T-1/context", house.api());
    let corrected = json!({"body": "Build the parser. In Rust.", "if_version": version});
    let (status, written) = house.call(Method::PUT, url, OPERATOR_TOKEN, &[], Some(corrected)).await;
    assert_eq!((status, &written["version"]), (StatusCode::OK, &json!(2)), "{written}");
    house.notify("acme", "T-1", "coder", "n-2", "PLEASE READ").await;
    let read = eventually("the agent has read it", async || {
        let seen = house.provider.seen();
        let outputs: Vec<String> = seen.iter().map(|seen| format!("{:?}", seen.tool_outputs())).collect();
        outputs.into_iter().find(|outputs| outputs.contains("In Rust."))
    })
    .await;
    assert!(read.contains("Operator"), "{read}");
    house.until("acme", "n-2", "delivered").await;
    house.close().await;
}
