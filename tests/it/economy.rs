//! The cost of a notification: round trips to the database and commits, counted on the wire between each service and Postgres. The
//! figures do not depend on the machine's speed, so a needless query shows here before it shows in a benchmark. After an
//! improvement, lower the limits.

use std::fmt::Write;

use serde_json::json;
use storage::Role;
use testkit::{Counts, Proxy, Reply, StubProvider, World, eventually};

use crate::house::House;

const ROLES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];

/// Periodic work is rare here, so that a slow machine does not count more of it.
const SELDOM: [(&str, &str); 7] = [
    ("replica.lease_ms", "60000"),
    ("replica.renew_ms", "20000"),
    ("resolver.claim_interval_ms", "20000"),
    ("delivery.sweep_interval_ms", "10000"),
    ("outbox.sweep_interval_ms", "30000"),
    ("outbox.sweep_age_ms", "30000"),
    ("telemetry.metrics_interval_ms", "60000"),
];

/// Per notification, over all services.
struct Limit {
    round_trips: f64,
    commits: f64,
}

/// All four services, each behind a counting proxy.
struct Counted {
    house: House,
    proxies: Vec<(Role, Proxy)>,
}

impl Counted {
    async fn open() -> Counted {
        let provider = StubProvider::start(|_| Reply::text("ok")).await;
        let mut world = World::start().await;
        world.provider(&provider);
        for (setting, value) in SELDOM {
            world.set(setting, value);
        }
        let url = world.database.url.clone();
        let authority = url.rsplit_once('@').and_then(|(_, rest)| rest.split_once('/'));
        let address = authority.expect("host and port").0.parse().unwrap();
        let mut proxies = Vec::new();
        for role in ROLES {
            let proxy = Proxy::postgres(address).await;
            world.lead(role, proxy.url(&url));
            proxies.push((role, proxy));
        }
        let house = House::open_in(world, provider).await;
        house.account("acme").await;
        house.agent("acme", "coder").await;
        Counted { house, proxies }
    }

    async fn publish(&self, tasks: usize, ids: std::ops::Range<usize>) {
        let jetstream = async_nats::jetstream::new(self.house.world.client().await);
        let mut acks = Vec::new();
        for n in ids {
            let payload = json!({"id": format!("n-{n}"), "agent": "coder", "body": "The build is red."});
            let subject = format!("signalbox.notification.acme.T-{}", n % tasks);
            acks.push(jetstream.publish(subject, payload.to_string().into()).await.unwrap());
        }
        for ack in acks {
            ack.await.unwrap();
        }
    }

    /// Waits until the turn is recorded and its reply posted.
    async fn until_answered(&self, count: usize) {
        let database = &self.house.world.database;
        let answered = "select least((select count(*) from notification where state = 'delivered'),
                                     (select count(*) from message))";
        eventually("all are delivered and answered", || async {
            (database.count(answered).await == i64::try_from(count).unwrap()).then_some(())
        })
        .await;
    }

    fn counts(&self) -> Vec<Counts> {
        self.proxies.iter().map(|(_, proxy)| proxy.counts()).collect()
    }

    /// Ends a run of `count` notifications: the cost of each since `before` must be within the limit.
    #[expect(
        clippy::print_stdout,
        reason = "the figures are worth a look where a limit is lowered"
    )]
    async fn check(self, before: Vec<Counts>, count: usize, limit: &Limit) {
        let database = &self.house.world.database;
        eventually("the relays have nothing left to do", || async {
            (database.count("select count(*) from outbox").await == 0).then_some(())
        })
        .await;
        let each = |number: u64| number as f64 / count as f64;
        let (mut round_trips, mut commits) = (0.0, 0.0);
        let mut report = String::new();
        for ((role, proxy), before) in self.proxies.iter().zip(before) {
            let counts = proxy.counts();
            let spent = Counts {
                round_trips: counts.round_trips - before.round_trips,
                commits: counts.commits - before.commits,
            };
            round_trips += each(spent.round_trips);
            commits += each(spent.commits);
            writeln!(
                report,
                "{:12} {:7.3} round trips {:7.3} commits",
                role.service(),
                each(spent.round_trips),
                each(spent.commits)
            )
            .unwrap();
        }
        println!(
            "{report}{:12} {round_trips:7.3} round trips {commits:7.3} commits",
            "each"
        );
        assert!(self.house.provider.overlaps().is_empty());
        assert!(
            round_trips <= limit.round_trips && commits <= limit.commits,
            "a notification costs {round_trips:.3} round trips and {commits:.3} commits; {} and {} are allowed\n{report}",
            limit.round_trips,
            limit.commits
        );
        self.house.close().await;
    }
}

/// A batch takes all waiting messages, which share its cost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_share_what_they_cost() {
    const COUNT: usize = 2_000;
    let counted = Counted::open().await;
    // Existing sessions: most notifications find one.
    counted.publish(200, 0..200).await;
    counted.until_answered(200).await;
    let before = counted.counts();
    counted.publish(200, 200..200 + COUNT).await;
    counted.until_answered(200 + COUNT).await;
    let limit = Limit {
        round_trips: 0.85,
        commits: 0.16,
    };
    counted.check(before, COUNT, &limit).await;
}

/// The session's turns run one after the other; each is a batch of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_alone_pays_for_each_turn() {
    const COUNT: usize = 200;
    let counted = Counted::open().await;
    counted.publish(1, 0..1).await;
    counted.until_answered(1).await;
    let before = counted.counts();
    counted.publish(1, 1..1 + COUNT).await;
    counted.until_answered(1 + COUNT).await;
    let limit = Limit {
        round_trips: 16.4,
        commits: 3.4,
    };
    counted.check(before, COUNT, &limit).await;
}

/// No batching: every step is taken for one notification.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_pays_for_every_step() {
    const COUNT: usize = 60;
    let counted = Counted::open().await;
    counted.publish(1, 0..1).await;
    counted.until_answered(1).await;
    let before = counted.counts();
    for n in 1..=COUNT {
        counted.publish(1, n..n + 1).await;
        counted.until_answered(1 + n).await;
    }
    let limit = Limit {
        round_trips: 22.6,
        commits: 4.6,
    };
    counted.check(before, COUNT, &limit).await;
}
