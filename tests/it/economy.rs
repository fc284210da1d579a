//! The row budget: what a notification costs in the database. Round trips and commits are counted on the wire between each
//! service and Postgres, written rows by triggers, foreign keys in the catalogue. The figures do not depend on the machine's
//! speed, so a needless query or row shows here before it shows in a benchmark. After an improvement, lower the limits.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::json;
use storage::Role;
use testkit::{Counts, Proxy, Reply, Seen, StubProvider, TestDatabase, World, eventually};

use crate::house::House;

const ROLES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];

/// Periodic work is rare here, so that a slow machine does not count more of it.
const SELDOM: [(&str, &str); 8] = [
    ("replica.lease_ms", "60000"),
    ("replica.renew_ms", "20000"),
    ("resolver.claim_interval_ms", "20000"),
    ("delivery.sweep_interval_ms", "30000"),
    ("orchestrator.timer_interval_ms", "30000"),
    ("outbox.sweep_interval_ms", "30000"),
    ("outbox.sweep_age_ms", "30000"),
    ("telemetry.metrics_interval_ms", "60000"),
];

/// Per notification, over all services.
struct Limit {
    round_trips: f64,
    commits: f64,
    rows: f64,
}

/// The costs so far.
struct Spent {
    services: Vec<Counts>,
    /// Rows inserted, updated and deleted, by table.
    rows: BTreeMap<String, i64>,
}

/// Counts every written row in a sequence of its table: sequences neither lock nor wait for a commit. Two tables have
/// rows that are written once a batch or a period, whatever it holds.
const ROWS_COUNTED: &str = "
    create schema written;
    create function written.count() returns trigger language plpgsql security definer as $$
    begin
        perform nextval(format('written.%I', tg_table_name));
        return null;
    end $$;
    do $$ declare name text; begin
        for name in select tablename from pg_tables
                    where schemaname = 'public' and tablename not in ('replica', 'resolver_partition') loop
            execute format('create sequence written.%I', name);
            execute format('create trigger written after insert or update or delete on %I
                            for each row execute function written.count()', name);
        end loop;
    end $$";

async fn rows_written(database: &TestDatabase) -> BTreeMap<String, i64> {
    sqlx::query_as("select sequencename::text, coalesce(last_value, 0) from pg_sequences where schemaname = 'written'")
        .fetch_all(&database.owner)
        .await
        .unwrap()
        .into_iter()
        .collect()
}

/// All four services, each behind a counting proxy.
struct Counted {
    house: House,
    proxies: Vec<(Role, Proxy)>,
}

impl Counted {
    async fn open(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Counted {
        let provider = StubProvider::start(script).await;
        let mut world = World::start().await;
        sqlx::raw_sql(ROWS_COUNTED)
            .execute(&world.database.owner)
            .await
            .unwrap();
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

    async fn spent(&self) -> Spent {
        let database = &self.house.world.database;
        eventually("the relays have nothing left to do", || async {
            (database.count("select count(*) from outbox").await == 0).then_some(())
        })
        .await;
        Spent {
            services: self.proxies.iter().map(|(_, proxy)| proxy.counts()).collect(),
            rows: rows_written(database).await,
        }
    }

    /// Ends a run of `count` notifications: the cost of each since `before` must be within the limit.
    #[expect(
        clippy::print_stdout,
        reason = "the figures are worth a look where a limit is lowered"
    )]
    async fn check(self, before: Spent, count: usize, limit: &Limit) {
        let after = self.spent().await;
        let each = |number: f64| number / count as f64;
        let (mut round_trips, mut commits, mut rows) = (0.0, 0.0, 0.0);
        let mut report = String::new();
        let services = before.services.iter().zip(&after.services);
        for ((role, _), (before, after)) in self.proxies.iter().zip(services) {
            let spent = (
                each((after.round_trips - before.round_trips) as f64),
                each((after.commits - before.commits) as f64),
            );
            let (service, (trips, commit)) = (role.service(), spent);
            writeln!(report, "{service:12} {trips:7.3} round trips {commit:7.3} commits").unwrap();
            round_trips += trips;
            commits += commit;
        }
        for (table, after) in &after.rows {
            let written = each((after - before.rows[table]) as f64);
            if written > 0.0 {
                writeln!(report, "{table:12} {written:7.3} rows").unwrap();
            }
            rows += written;
        }
        let whole = format!("{round_trips:.3} round trips, {commits:.3} commits, {rows:.3} rows");
        println!("{report}each: {whole}");
        assert!(self.house.provider.overlaps().is_empty());
        assert!(
            round_trips <= limit.round_trips && commits <= limit.commits && rows <= limit.rows,
            "a notification costs {whole}; {}, {} and {} are allowed\n{report}",
            limit.round_trips,
            limit.commits,
            limit.rows
        );
        self.house.close().await;
    }
}

/// Each would be a look-up for each row of the hot path.
#[tokio::test]
async fn hot_tables_have_no_foreign_keys() {
    let database = TestDatabase::fresh().await;
    let keys = database
        .texts(
            "select conrelid::regclass || ': ' || pg_get_constraintdef(oid) from pg_constraint
             where contype = 'f' and conrelid in ('turn'::regclass, 'message'::regclass, 'notification'::regclass)",
        )
        .await;
    assert_eq!(keys, Vec::<String>::new());
}

/// A batch takes all waiting messages, which share its cost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_share_what_they_cost() {
    const COUNT: usize = 2_000;
    let counted = Counted::open(|_| Reply::text("ok")).await;
    // Existing sessions: most notifications find one.
    counted.publish(200, 0..200).await;
    counted.until_answered(200).await;
    let before = counted.spent().await;
    counted.publish(200, 200..200 + COUNT).await;
    counted.until_answered(200 + COUNT).await;
    let limit = Limit {
        round_trips: 0.6,
        commits: 0.13,
        rows: 8.4,
    };
    counted.check(before, COUNT, &limit).await;
}

/// The session's turns run one after the other; each is a batch of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_alone_pays_for_each_turn() {
    const COUNT: usize = 200;
    let counted = Counted::open(|_| Reply::text("ok")).await;
    counted.publish(1, 0..1).await;
    counted.until_answered(1).await;
    let before = counted.spent().await;
    counted.publish(1, 1..1 + COUNT).await;
    counted.until_answered(1 + COUNT).await;
    let limit = Limit {
        round_trips: 6.5,
        commits: 1.2,
        rows: 9.3,
    };
    counted.check(before, COUNT, &limit).await;
}

/// No batching: every step is taken for one notification.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_at_a_time_pays_for_every_step() {
    const COUNT: usize = 60;
    let counted = Counted::open(|_| Reply::text("ok")).await;
    counted.publish(1, 0..1).await;
    counted.until_answered(1).await;
    let before = counted.spent().await;
    for n in 1..=COUNT {
        counted.publish(1, n..n + 1).await;
        counted.until_answered(1 + n).await;
    }
    let limit = Limit {
        round_trips: 12.5,
        commits: 3.2,
        rows: 11.1,
    };
    counted.check(before, COUNT, &limit).await;
}

/// A turn with one call of a tool that only reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_call_pays_for_its_round() {
    const COUNT: usize = 60;
    let counted = Counted::open(|seen| match seen.tool_outputs().is_empty() {
        true => Reply::call("c-1", "task_history", json!({})),
        false => Reply::text("ok"),
    })
    .await;
    counted.publish(1, 0..1).await;
    counted.until_answered(1).await;
    let before = counted.spent().await;
    for n in 1..=COUNT {
        counted.publish(1, n..n + 1).await;
        counted.until_answered(1 + n).await;
    }
    let limit = Limit {
        round_trips: 28.0,
        commits: 6.4,
        rows: 18.2,
    };
    counted.check(before, COUNT, &limit).await;
}
