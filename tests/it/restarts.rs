//! Every service dies and comes back, messages come twice and out of order, and the end is the same, once.

use serde_json::json;
use storage::Role;
use testkit::{Reply, eventually};

use crate::house::House;

const ROLES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];

/// A tool call that has an effect, then a reply.
fn script(seen: &testkit::Seen) -> Reply {
    if seen.tool_outputs().is_empty() {
        let words = seen.input();
        let id = words
            .lines()
            .find_map(|line| line.strip_prefix("Notification: "))
            .unwrap_or("?")
            .to_owned();
        Reply::call(
            &format!("c-{id}"),
            "task_message",
            json!({"task_id": "T-1", "body": format!("effect of {id}")}),
        )
    } else {
        Reply::text("done")
    }
}

/// Everything that must hold in the end, whatever happened on the way.
async fn assert_end(house: &House, count: usize) {
    for n in 0..count {
        house.until("acme", &format!("n-{n}"), "delivered").await;
    }
    eventually("every reply is posted", || async {
        (house
            .world
            .database
            .count("select count(*) from message where body = 'done'")
            .await
            == i64::try_from(count).unwrap())
        .then_some(())
    })
    .await;
    let effects = house
        .world
        .database
        .texts("select body from message where body like 'effect of %' order by body")
        .await;
    let mut expected: Vec<String> = (0..count).map(|n| format!("effect of n-{n}")).collect();
    expected.sort();
    assert_eq!(effects, expected, "each effect once");
    let database = &house.world.database;
    assert_eq!(
        database
            .count("select count(*) from turn where state <> 'finished'")
            .await,
        0
    );
    assert_eq!(
        database.count("select count(*) from turn").await,
        i64::try_from(count).unwrap()
    );
    assert_eq!(
        database
            .count("select count(*) from session where closed_at is null")
            .await,
        1
    );
    assert_eq!(database.count("select count(*) from dead_letter").await, 0);
    let order: Vec<String> = database
        .texts("select notification_ids[1] from turn order by number")
        .await;
    assert_eq!(
        order,
        (0..count).map(|n| format!("n-{n}")).collect::<Vec<_>>(),
        "turns run in the order of acceptance"
    );
}

async fn furnished() -> House {
    let house = House::open(script).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &[]).await;
    house
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_service_dies_in_turn_while_work_goes_on() {
    let mut house = furnished().await;
    let count = 24;
    for n in 0..count {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
        if n % 3 == 2 {
            // Wherever it is in its work, it is cut off there.
            house.kill(ROLES[(n / 3) % ROLES.len()]);
            house.up().await;
        }
    }
    assert_end(&house, count).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_dies_at_once_and_the_broker_with_it() {
    let mut house = furnished().await;
    for n in 0..8 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
    }
    eventually("work is under way", || async {
        (house.provider.seen().len() > 2).then_some(())
    })
    .await;
    for role in ROLES {
        house.kill(role);
    }
    house.world.nats.kill().await.unwrap();
    house.world.nats.restart().await.unwrap();
    house.up().await;
    assert_end(&house, 8).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_comes_twice_and_out_of_order() {
    let house = furnished().await;
    let client = house.world.client().await;
    for n in 0..6 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
    }
    assert_end(&house, 6).await;
    // Everything that was ever said, said again, newest first.
    let jetstream = async_nats::jetstream::new(client);
    for stream in [
        "SIGNALBOX_SESSION",
        "SIGNALBOX_TOOL",
        "SIGNALBOX_EVENT",
        "SIGNALBOX_NOTIFICATION",
    ] {
        let mut stream = jetstream.get_stream(stream).await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        for sequence in (1..=last).rev() {
            let Ok(message) = stream.get_raw_message(sequence).await else {
                continue;
            };
            let mut subject = message.subject.to_string();
            if let Some(rest) = subject.strip_prefix("signalbox.partition.") {
                subject = format!("signalbox.notification.{}", rest.split_once('.').unwrap().1);
            }
            let mut headers = message.headers.clone();
            // Another id, so that no broker's window hides it from us.
            headers.insert("Nats-Msg-Id", format!("again-{}", uuid::Uuid::now_v7()));
            let ack = jetstream
                .publish_with_headers(subject, headers, message.payload.clone())
                .await
                .unwrap();
            ack.await.unwrap();
        }
    }
    house.notify("acme", "T-1", "coder", "n-6", "x").await;
    assert_end(&house, 7).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_broker_loses_nothing_that_was_accepted() {
    let mut house = furnished().await;
    house.notify("acme", "T-1", "coder", "n-0", "x").await;
    house.until("acme", "n-0", "delivered").await;
    house.kill(Role::Delivery);
    for n in 1..5 {
        house.notify("acme", "T-1", "coder", &format!("n-{n}"), "x").await;
        house.until("acme", &format!("n-{n}"), "queued").await;
    }
    for role in ROLES {
        house.kill(role);
    }
    house.world.nats.stop().await.unwrap();
    house.world.nats.wipe_store().await.unwrap();
    house.world.nats.restart().await.unwrap();
    house.up().await;
    house.notify("acme", "T-1", "coder", "n-5", "x").await;
    assert_end(&house, 6).await;
    house.close().await;
}
