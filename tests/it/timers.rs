//! Timers through all services: a crash, a lost broker and two orchestrators fire each of them once.

use std::time::Instant;

use serde_json::json;
use storage::Role;
use testkit::{Reply, eventually, rows};

use crate::house::House;

/// An agent with an open session on a task.
async fn open(settings: &[(&str, &str)]) -> House {
    let house = House::open_with(|_| Reply::text("done"), settings).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    house.task("acme", "T-1", &["coder"]).await;
    house.notify("acme", "T-1", "coder", "n-1", "x").await;
    house.until("acme", "n-1", "delivered").await;
    house
}

impl House {
    async fn due(&self, many: u32, key: &str) {
        let of = format!("session s, generate_series(1, {many}) n where s.closed_at is null");
        let timers = rows("timer").set("key", format!("'{key}' || n"));
        timers.from(of).insert(&self.world.database.owner).await;
    }

    /// So many timers have fired, and each is one item.
    async fn fired(&self, many: usize) {
        let once = "select concat_ws(' ', t.state, count(*), count(distinct n.id)) from timer t
                    left join notification n on n.account_id = t.account_id and n.id = t.notification_id
                    group by t.state";
        let expected = format!("fired {many} {many}");
        eventually("all timers have fired", || async {
            (self.world.database.texts(once).await == [expected.clone()]).then_some(())
        })
        .await;
        let items = "select count(*) from notification where kind = 'timer'";
        assert_eq!(self.world.database.count(items).await, i64::try_from(many).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_whose_firing_was_not_committed_fires_once() {
    let mut house = open(&[]).await;
    house
        .running(Role::Orchestrator)
        .crash_at("orchestrator.timer_written", 1);
    house.due(3, "a").await;
    house.running(Role::Orchestrator).crashed().await;
    house.kill(Role::Orchestrator);
    let fired = "select count(*) from timer where state <> 'waiting'";
    assert_eq!(house.world.database.count(fired).await, 0);
    house.up().await;
    house.fired(3).await;
    let waiting = "select count(*) from notification where kind = 'timer' and state <> 'delivered'";
    eventually("their turns are finished", || async {
        (house.world.database.count(waiting).await == 0).then_some(())
    })
    .await;
    house.close().await;
}

/// Without an open session the item goes to the resolver: the message is published again after the broker lost it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_firing_lost_with_the_broker_comes_once() {
    let mut house = open(&[]).await;
    house.kill(Role::Resolver);
    house.due(2, "a").await;
    let close = "update session set closed_at = now(), close_reason = 'reset'";
    sqlx::query(close).execute(&house.world.database.owner).await.unwrap();
    let stored =
        "select count(*) from outbox where split_part(subject, '.', 2) = 'notification' and stored_at is not null";
    eventually("the broker has both", || async {
        (house.world.database.count(stored).await == 2).then_some(())
    })
    .await;
    house.world.nats.stop().await.unwrap();
    house.world.nats.wipe_store().await.unwrap();
    house.world.nats.restart().await.unwrap();
    house.up().await;
    house.fired(2).await;
    house.close().await;
}

/// A task that ended between the firing and the resolver is not opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_opens_no_task_that_has_ended() {
    let mut house = open(&[]).await;
    house.kill(Role::Resolver);
    house.due(1, "a").await;
    let close = "update session set closed_at = now(), close_reason = 'reset'";
    sqlx::query(close).execute(&house.world.database.owner).await.unwrap();
    let fired = "select count(*) from timer where state = 'fired'";
    eventually("it has fired", || async {
        (house.world.database.count(fired).await == 1).then_some(())
    })
    .await;
    house.patch("/api/orgs/acme/tasks/T-1", json!({"status": "done"})).await;
    house.up().await;
    let cancelled =
        "select count(*) from notification where kind = 'timer' and state = 'cancelled' and reason = 'task closed'";
    eventually("its item is cancelled", || async {
        (house.world.database.count(cancelled).await == 1).then_some(())
    })
    .await;
    assert_eq!(
        house
            .world
            .database
            .count("select count(*) from session where closed_at is null")
            .await,
        0
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_due_timers_fire_once_on_two_replicas() {
    let mut house = open(&[]).await;
    // Their turns are not of interest here.
    house.kill(Role::Delivery);
    let second = house.world.run(Role::Orchestrator, orchestrator::start).await;
    let begun = Instant::now();
    house.due(10_000, "a").await;
    let all = "select count(*) from timer where state = 'fired'";
    eventually("ten thousand timers have fired", || async {
        (house.world.database.count(all).await == 10_000).then_some(())
    })
    .await;
    println!("10,000 timers were set and fired in {:?}", begun.elapsed());
    house.fired(10_000).await;
    second.stop().await;
    house.up().await;
    house.close().await;
}
