//! An account's settings (S14) change while work is in progress, and nothing is lost: running work keeps the old settings, later
//! work follows the new ones.

use std::sync::Arc;

use serde_json::json;
use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::house::House;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scope_and_layout_change_in_the_middle_of_a_turn() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let house = House::open(move |seen| match seen.order {
        0 => Reply::Gated(
            Arc::clone(&script),
            Box::new(Reply::call("c-1", "task_history", json!({"task_id": "T-1"}))),
        ),
        _ => Reply::text("ok"),
    })
    .await;
    house.account("acme").await;
    let agent = house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    house.notify("acme", "T-1", "coder", "n-1", "x").await;
    eventually("the call is in flight", || async {
        (house.provider.seen().len() == 1).then_some(())
    })
    .await;
    house.notify("acme", "T-1", "coder", "n-behind", "x").await;
    house.until("acme", "n-behind", "queued").await;
    house
        .patch(
            "/api/orgs/acme",
            json!({"session_scope": "agent", "instruction_layout": "inline"}),
        )
        .await;
    house.notify("acme", "T-1", "coder", "n-wide", "x").await;
    house.notify("acme", "-", "coder", "n-taskless", "x").await;
    gate.add_permits(1);

    let of_task = format!("task:t-1:agent:{agent}:acme:v1");
    let of_agent = format!("system:agent:{agent}:acme:v1");
    for (id, key) in [
        ("n-1", &of_task),
        ("n-behind", &of_task),
        ("n-wide", &of_agent),
        ("n-taskless", &of_agent),
    ] {
        assert_eq!(&house.until("acme", id, "delivered").await["session_key"], key, "{id}");
    }
    let seen = house.provider.seen_of(&of_task);
    assert_eq!(seen.len(), 3);
    // The turn that began with separate instructions ends with them; the next one has them in front of its input.
    for (call, apart) in seen.iter().zip([true, true, false]) {
        assert_eq!(call.body["instructions"].is_string(), apart, "{}", call.body);
        assert_eq!(call.input().contains("Act on this notification only"), !apart);
    }
    assert_eq!(seen[1].tool_outputs().len(), 1);

    // And back: the task's session is unchanged.
    house
        .patch(
            "/api/orgs/acme",
            json!({"session_scope": "task", "instruction_layout": "layered"}),
        )
        .await;
    house.notify("acme", "T-1", "coder", "n-back", "x").await;
    assert_eq!(
        house.until("acme", "n-back", "delivered").await["session_key"],
        of_task.as_str()
    );
    assert!(house.provider.seen_of(&of_task)[3].body["instructions"].is_string());
    house.close().await;
}
