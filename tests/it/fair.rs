//! One account with very much waiting, and another with a little: the other's turn comes, whatever the first has.

use std::sync::Arc;

use serde_json::json;
use storage::Role;
use testkit::{Reply, eventually};
use tokio::sync::Semaphore;

use crate::house::House;

const FLOOD: usize = 3_000;
const SESSIONS: usize = 300;

/// The flood's turns call a tool, and then hold every place that their account may have, for as long as the test wants.
/// Fewer sessions than wait fit into delivery's line, and its search finds fewer still at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_turns_of_another_end_before_the_first_of_thousands() {
    let gate = Arc::new(Semaphore::new(0));
    let script = Arc::clone(&gate);
    let mut house = House::open_with(
        move |seen| match seen.tool_outputs().len() {
            0 => Reply::call(
                &format!("c-{}", seen.order),
                "task_message",
                json!({"task_id": task_of(&seen.key), "body": "working on it"}),
            ),
            _ if seen.key.contains(":flood:") => Reply::Gated(Arc::clone(&script), Box::new(Reply::text("done"))),
            _ => Reply::text("done"),
        },
        &[
            ("replica.lease_ms", "60000"),
            ("delivery.turns_in_flight_max", "4"),
            ("delivery.turns_in_flight_account_max", "3"),
            ("delivery.waiting_sessions_max", "50"),
            ("delivery.sweep_sessions_max", "20"),
        ],
    )
    .await;
    for account in ["flood", "zeta"] {
        house.account(account).await;
        house.agent(account, "coder").await;
    }
    let jetstream = async_nats::jetstream::new(house.world.client().await);
    let mut acks = Vec::new();
    for n in 0..FLOOD {
        let payload = json!({"id": format!("f-{n}"), "agent": "coder", "body": "x"}).to_string();
        let subject = format!("signalbox.notification.flood.F-{}", n % SESSIONS);
        acks.push(jetstream.publish(subject, payload.into()).await.unwrap());
    }
    for ack in acks {
        ack.await.unwrap();
    }
    let count = async |sql: &'static str| house.world.database.count(sql).await;
    const WRITTEN: &str = "select count(*) from notification where account_id = 'flood'";
    eventually("the flood is written down", || async {
        (count(WRITTEN).await == FLOOD as i64).then_some(())
    })
    .await;
    const HOLDING: &str = "select count(*) from turn t where account_id = 'flood' and state = 'calling' and rounds = 1";
    eventually("the flood has all the places that it may have", || async {
        (count(HOLDING).await == 3).then_some(())
    })
    .await;

    for n in 0..10 {
        let task = format!("Z-{}", n % 3);
        house.notify("zeta", &task, "coder", &format!("z-{n}"), "x").await;
    }
    for n in 0..10 {
        house.until("zeta", &format!("z-{n}"), "delivered").await;
    }
    let first = "select count(*) from turn where account_id = 'flood' and state = 'finished'";
    assert_eq!(count(first).await, 0, "turns of the flood, which only wait");
    let waiting = "select count(*) from notification where account_id = 'flood' and state = 'queued'";
    assert!(count(waiting).await >= (FLOOD - SESSIONS) as i64);

    // And the flood's turn comes, too.
    gate.add_permits(1);
    eventually("one of the flood", || async { (count(first).await == 1).then_some(()) }).await;
    for role in [Role::Delivery, Role::Resolver, Role::ToolGateway, Role::Orchestrator] {
        house.kill(role);
    }
}

/// From the session's key, as a tool wants it.
fn task_of(key: &str) -> String {
    let task = key.strip_prefix("task:").and_then(|rest| rest.split(':').next());
    task.unwrap_or_default().to_uppercase()
}
