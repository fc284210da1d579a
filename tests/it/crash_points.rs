//! Every service is killed between any two of its steps and restarted, and the result is the same, once.
//!
//! Systematic, unlike `restarts`: each point of [`runtime::crash::CRASH_POINTS`] is a trial in a house of its own, at its first and
//! second hit. A trial whose point is not reached fails.

use futures::{StreamExt, stream};
use reqwest::{Method, StatusCode};
use runtime::crash::CRASH_POINTS;
use serde_json::json;
use storage::Role;
use testkit::{OPERATOR_TOKEN, Reply, eventually};

use crate::{
    house::House,
    orchestrators::{as_person, person},
    same_end::{assert_end, assert_events, furnished},
};

/// Short leases, so that other replicas take over soon.
const SETTINGS: &[(&str, &str)] = &[("nats.limits.ack_wait_ms", "1000")];
/// Each trial mostly waits for leases to expire.
const TRIALS_AT_ONCE: usize = 4;
/// One session, so one `session.opened`: the resolver's only outbox row here.
const REACHED_ONCE: &[(Role, &str)] = &[(Role::Resolver, "outbox.messages_published")];

/// Reached by a stop, a note, an answer, a timer or an external call only: `brakes`, delivery's `inject`, `questions`, `timers` and
/// `models` have their trials.
const REACHED_OTHERWISE: [&str; 5] = [
    "tool_gateway.call_answered",
    "delivery.stop_dropped",
    "delivery.note_written",
    "orchestrator.answer_written",
    "orchestrator.timer_written",
];

/// A service, a point, and the number of the hit.
struct Trial {
    house: House,
    role: Role,
    point: &'static str,
    nth: usize,
    died: bool,
}

impl Trial {
    async fn run(role: Role, point: &'static str, nth: usize) {
        let house = furnished(SETTINGS).await;
        house.running(role).crash_at(point, nth);
        let mut trial = Trial {
            house,
            role,
            point,
            nth,
            died: false,
        };
        trial.send("n-0").await;
        trial.send("n-1").await;
        trial.post("n-2").await;
        trial.all_delivered(3).await;
        // Later hits occur with these messages at the latest.
        trial.send("n-3").await;
        trial.post("n-4").await;
        trial.all_delivered(5).await;
        trial.settled().await;
        assert!(trial.died, "{} was never reached {nth} times", trial.name());
        assert_end(&trial.house, 5).await;
        assert_events(&trial.house, 5).await;
        assert!(trial.house.provider.overlaps().is_empty(), "{}", trial.name());
        trial.house.close().await;
    }

    fn name(&self) -> String {
        format!("{} of {}, hit {}", self.point, self.role.service(), self.nth)
    }

    async fn send(&self, id: &str) {
        self.house.notify("acme", "T-1", "coder", id, "x").await;
    }

    /// Over HTTP, repeated until it succeeds: after a broken connection it is unknown whether the request had its effect.
    async fn post(&mut self, id: &str) {
        let body = json!({"id": id, "agent": "coder", "task": "T-1", "body": "x"});
        loop {
            let url = format!("{}/api/orgs/acme/notifications", self.house.api());
            let headers = [("idempotency-key", id)];
            let posting = self
                .house
                .call(Method::POST, url, OPERATOR_TOKEN, &headers, Some(body.clone()));
            match self.unless_dead(posting).await {
                Some((status, answer)) => {
                    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
                    return;
                }
                None => self.bring_back().await,
            }
        }
    }

    async fn all_delivered(&mut self, count: i64) {
        const DELIVERED: &str = "select count(*) from notification where state = 'delivered'";
        self.until(&format!("{count} notifications are delivered"), DELIVERED, count)
            .await;
    }

    /// The last steps of the last turn: its reply is posted, and every message is published.
    async fn settled(&mut self) {
        self.until(
            "replies are posted",
            "select count(*) from message where body = 'done'",
            5,
        )
        .await;
        self.until("the outbox is empty", "select count(*) from outbox", 0)
            .await;
    }

    /// Reads the database, since the API may be the killed service.
    async fn until(&mut self, what: &str, sql: &'static str, count: i64) {
        let what = format!("{}: {what}", self.name());
        loop {
            let database = &self.house.world.database;
            let reaching = eventually(&what, || async { (database.count(sql).await == count).then_some(()) });
            match self.unless_dead(reaching).await {
                Some(()) => return,
                None => self.bring_back().await,
            }
        }
    }

    /// None: the service was cut off meanwhile.
    async fn unless_dead<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.house.running(self.role).crashed() => None,
            done = work => Some(done),
        }
    }

    async fn bring_back(&mut self) {
        self.died = true;
        self.house.kill(self.role);
        self.house.up().await;
    }
}

/// Every point of a service and of the shared crates, at its first and second hit. On every change: the service's last own point
/// and the outbox's last point, once.
async fn every_point_of(role: Role) {
    let own = format!("{}.", role.service().replace('-', "_"));
    let points = CRASH_POINTS
        .iter()
        .filter(|point| point.starts_with(&own) || point.starts_with("outbox."))
        .filter(|point| !REACHED_OTHERWISE.contains(point));
    let trials: Vec<_> = points
        .flat_map(|&point| [(point, 1), (point, 2)])
        .filter(|&(point, nth)| nth == 1 || !REACHED_ONCE.contains(&(role, point)))
        .collect();
    assert!(trials.len() > 2, "a service has points of its own");
    let is_last = |of: &str, point: &str| CRASH_POINTS.iter().rfind(|last| last.starts_with(of)) == Some(&point);
    let is_of_a_change = |point: &str, nth| nth == 1 && (is_last(&own, point) || is_last("outbox.", point));
    let trials = trials
        .into_iter()
        .filter(|(point, nth)| crate::is_nightly() || is_of_a_change(point, *nth));
    stream::iter(trials)
        .map(|(point, nth)| Trial::run(role, point, nth))
        .buffer_unordered(TRIALS_AT_ONCE)
        .collect::<()>()
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_resolver_dies_anywhere() {
    every_point_of(Role::Resolver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivery_dies_anywhere() {
    every_point_of(Role::Delivery).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tool_gateway_dies_anywhere() {
    every_point_of(Role::ToolGateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_orchestrator_dies_anywhere() {
    every_point_of(Role::Orchestrator).await;
}

/// The steps of `create_session`, each at its first hit; the first two on every change.
const GIVEN_AWAY: [(Role, &str); 9] = [
    (Role::ToolGateway, "tool_gateway.effect_written"),
    (Role::ToolGateway, "tool_gateway.effect_committed"),
    (Role::ToolGateway, "tool_gateway.request_read"),
    (Role::ToolGateway, "tool_gateway.result_published"),
    (Role::Delivery, "delivery.claim_committed"),
    (Role::Delivery, "delivery.turn_taken"),
    (Role::Delivery, "delivery.turn_answered"),
    (Role::Delivery, "delivery.outcome_written"),
    (Role::Delivery, "delivery.outcome_committed"),
];

/// An orchestrator gives work away while a service dies: there is one child, and it does the work once.
async fn given_away(role: Role, point: &'static str) {
    let script = |seen: &testkit::Seen| match seen.key.starts_with("orchestrator:") && seen.tool_outputs().is_empty() {
        true => Reply::call("c-1", "create_session", json!({"prompt": "Make the tests pass."})),
        false => Reply::text("done"),
    };
    let mut house = House::open_with(script, SETTINGS).await;
    house.account("acme").await;
    house.agent("acme", "coder").await;
    let ann = person(&house, "acme", "ann").await;
    house.running(role).crash_at(point, 1);
    let path = "/api/sessions/orchestrator:ann/prompt";
    let prompt = json!({"content": "Fix the tests."});
    let prompted = as_person(&house, Method::POST, &ann, path, Some(prompt)).await;
    house.running(role).crashed().await;
    house.kill(role);
    house.up().await;
    house
        .until("acme", prompted["notification_id"].as_str().unwrap(), "delivered")
        .await;
    let database = &house.world.database;
    eventually(&format!("{point}: the work is done"), || async {
        let done = "select count(*) from turn where task_id is not null and state = 'finished'";
        (database.count(done).await > 0).then_some(())
    })
    .await;
    eventually(&format!("{point}: nothing is left to do"), || async {
        let open = "select (select count(*) from turn where state <> 'finished') + (select count(*) from outbox)
                    + (select count(*) from notification where state <> 'delivered')";
        (database.count(open).await == 0).then_some(())
    })
    .await;
    for (rows, once) in [
        ("tasks", "select count(*) from task where board = 'user:ann'"),
        ("sessions", "select count(*) from session where task_id is not null"),
        ("items", "select count(*) from notification where task_id is not null"),
        ("turns", "select count(*) from turn where task_id is not null"),
        ("calls", "select count(*) from tool_call"),
    ] {
        assert_eq!(database.count(once).await, 1, "{point}: {rows}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_is_given_away_is_one_child_wherever_a_service_dies() {
    let trials = if crate::is_nightly() { GIVEN_AWAY.len() } else { 2 };
    stream::iter(&GIVEN_AWAY[..trials])
        .map(|(role, point)| given_away(*role, point))
        .buffer_unordered(TRIALS_AT_ONCE)
        .collect::<()>()
        .await;
}
