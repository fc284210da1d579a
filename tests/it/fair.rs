//! One account has a long queue, another a few notifications: the other account's turns start regardless of the first. The same
//! holds for HTTP requests.

use std::sync::Arc;

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use storage::Role;
use testkit::{Reply, eventually, rows};
use tokio::sync::Semaphore;

use crate::house::House;

const FLOOD: usize = 3_000;
const SESSIONS: usize = 300;

/// The flood's turns call a tool, and then hold all places of their account for as long as the test needs. Delivery's queue takes
/// fewer sessions than wait, and its sweep finds still fewer at a time.
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

    // The flood's turns also start.
    gate.add_permits(1);
    eventually("one of the flood", || async { (count(first).await == 1).then_some(()) }).await;
    for role in [Role::Delivery, Role::Resolver, Role::ToolGateway, Role::Orchestrator] {
        house.kill(role);
    }
}

/// The session's tool credentials, from its key.
fn task_of(key: &str) -> String {
    let task = key.strip_prefix("task:").and_then(|rest| rest.split(':').next());
    task.unwrap_or_default().to_uppercase()
}

/// Several accounts hold all connections for requests; authentication still works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_is_found_out_while_others_use_up_the_database() {
    let settings = [
        ("database.connections_max", "4"),
        ("database.acquire_timeout_ms", "2000"),
        ("database.lock_timeout_ms", "60000"),
        ("database.statement_timeout_ms", "60000"),
        ("orchestrator.list_timeout_ms", "60000"),
    ];
    let house = House::open_with(|_| Reply::text("ok"), &settings).await;
    let client = Client::new();
    let tasks = |account: &str| format!("{}/api/orgs/{account}/tasks", house.api());
    let mut holding = Vec::new();
    for account in ["a", "b", "c", "d"] {
        house.account(account).await;
        let key = house.key(account, "member").await;
        holding.push(client.get(tasks(account)).bearer_auth(key));
    }
    house.account("zeta").await;
    let zetas = house.key("zeta", "gateway").await;
    let mut held = house.world.database.owner.begin().await.unwrap();
    sqlx::query("lock table task in access exclusive mode")
        .execute(&mut *held)
        .await
        .unwrap();
    let holding: Vec<_> = holding
        .into_iter()
        .map(|request| tokio::spawn(request.send()))
        .collect();
    eventually("all connections are in use", || async {
        let waiting = "select count(*) from pg_stat_activity where datname = current_database()
                       and application_name = 'signalbox-orchestrator' and wait_event_type = 'Lock'";
        (house.world.database.count(waiting).await == 4).then_some(())
    })
    .await;
    // A valid key without the permission, and an unknown key.
    let made_up = format!("{}0000", &zetas[..zetas.len() - 4]);
    for (key, expected) in [(zetas, StatusCode::FORBIDDEN), (made_up, StatusCode::UNAUTHORIZED)] {
        let asked = client.get(tasks("zeta")).bearer_auth(key).send().await.unwrap();
        assert_eq!(asked.status(), expected);
    }
    held.rollback().await.unwrap();
    for request in holding {
        assert_eq!(request.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    house.close().await;
}

/// Many slow requests of one account use up that account's share of the connections only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_uses_its_part_of_the_connections_and_no_more() {
    let settings = [
        ("database.connections_max", "16"),
        ("database.acquire_timeout_ms", "2000"),
        ("database.lock_timeout_ms", "60000"),
        ("database.statement_timeout_ms", "60000"),
        ("orchestrator.list_timeout_ms", "60000"),
        ("http.account_wait_ms", "60000"),
    ];
    let house = House::open_with(|_| Reply::text("ok"), &settings).await;
    for account in ["flood", "zeta"] {
        house.account(account).await;
    }
    let (floods, zetas) = (house.key("flood", "member").await, house.key("zeta", "member").await);
    let client = Client::new();
    let mut held = house.world.database.owner.begin().await.unwrap();
    sqlx::query("lock table task in access exclusive mode")
        .execute(&mut *held)
        .await
        .unwrap();
    let flood = || -> Vec<_> {
        let tasks = format!("{}/api/orgs/flood/tasks", house.api());
        (0..40)
            .map(|_| client.get(&tasks).bearer_auth(&floods))
            .map(|request| tokio::spawn(request.send()))
            .collect()
    };
    let flooding = flood();
    let waiting = "select count(*) from pg_stat_activity where datname = current_database()
                   and application_name = 'signalbox-orchestrator' and wait_event_type = 'Lock'";
    eventually("the flood uses what it may", || async {
        (house.world.database.count(waiting).await >= 4).then_some(())
    })
    .await;
    // Clients that leave do not end their statements, and free no connection.
    for request in flooding {
        request.abort();
    }
    let flooding = flood();
    for _ in 0..100 {
        let agents = client
            .get(format!("{}/api/orgs/zeta/agents", house.api()))
            .bearer_auth(&zetas);
        assert_eq!(agents.send().await.unwrap().status(), StatusCode::OK);
    }
    assert_eq!(house.world.database.count(waiting).await, 4);
    held.rollback().await.unwrap();
    for request in flooding {
        assert_eq!(request.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    house.close().await;
}

const ROWS: usize = 200_000;
const ASKERS: usize = 120;

/// Selective filters over very many rows, as many at a time as an account may send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_that_find_nothing_keep_no_other_account_waiting() {
    // The time depends on the machine; the test checks which account is refused.
    let settings = [
        ("orchestrator.list_timeout_ms", "20000"),
        ("database.acquire_timeout_ms", "60000"),
    ];
    let house = House::open_with(|_| Reply::text("ok"), &settings).await;
    for account in ["flood", "zeta"] {
        house.account(account).await;
        house.task(account, "T", &[]).await;
    }
    let flood = rows("notification")
        .with("account_id", "flood")
        .set("id", "'n-' || n")
        .with("state", "delivered");
    let flood = flood
        .set("created_at", "now() - n * interval '1 s'")
        .from(format!("generate_series(1, {ROWS}) n"));
    flood.insert(&house.world.database.owner).await;
    let client = Client::new();
    let ask = async |account: &str, key: &str, query: &str| {
        let url = format!("{}/api/orgs/{account}/notifications?{query}", house.api());
        let answer = client.get(url).bearer_auth(key).send().await.unwrap();
        (answer.status(), answer.json::<Value>().await.unwrap())
    };
    let (floods, zetas) = (house.key("flood", "member").await, house.key("zeta", "member").await);
    let flooding = futures::future::join_all((0..ASKERS).map(|_| ask("flood", &floods, "state=failed&limit=1")));
    let asking = async {
        for _ in 0..100 {
            let (status, body) = ask("zeta", &zetas, "state=failed&limit=1").await;
            assert_eq!(status, StatusCode::OK, "{body}");
        }
    };
    let (answers, ()) = futures::join!(flooding, asking);
    let mut looked = 0;
    for (status, body) in answers {
        // Too many at a time, or a scan of some rows with a cursor.
        if status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(body["code"], "too_many_requests", "{body}");
            continue;
        }
        assert_eq!(status, StatusCode::OK, "{body}");
        assert_eq!(body["items"], json!([]));
        assert!(
            body["next_cursor"].is_string(),
            "a part of the rows was looked at: {body}"
        );
        looked += 1;
    }
    assert!(looked > 0);
    house.close().await;
}
