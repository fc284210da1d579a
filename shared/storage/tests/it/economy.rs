//! The round trips of a transaction besides its statements, and the isolation of the next one.

use sea_orm::ConnectionTrait;
use storage::{Accounts, Database, DatabaseOptions, Role, statement};
use testkit::{Counts, Fixture, Proxy, TestDatabase};

async fn in_front_of(test: &TestDatabase) -> Proxy {
    let (_, rest) = test.url.rsplit_once('@').unwrap();
    let (authority, _) = rest.split_once('/').unwrap();
    Proxy::postgres(authority.parse().unwrap()).await
}

async fn connect(url: &str, role: Role, connections_max: u32) -> Database {
    let options = DatabaseOptions {
        connections_max,
        ..DatabaseOptions::default()
    };
    Database::connect(url, role, &options).await.unwrap()
}

async fn setting(tx: &storage::Tx, name: &str) -> String {
    let row = tx
        .query_one_raw(statement(
            "select coalesce(current_setting($1, true), '') as value",
            [name.into()],
        ))
        .await
        .unwrap();
    row.unwrap().try_get("", "value").unwrap()
}

/// In the same round trip, and for this transaction only.
#[tokio::test]
async fn a_hurried_transaction_has_a_tenth_of_the_time() {
    let test = TestDatabase::fresh().await;
    let database = connect(&test.url, Role::Delivery, 1).await;
    for (database, expected) in [(&database.hurried(), "2s"), (&database, "20s")] {
        let tx = database.begin(&Accounts::none()).await.unwrap();
        assert_eq!(setting(&tx, "statement_timeout").await, expected);
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_transaction_costs_two_round_trips_besides_its_statements() {
    let test = TestDatabase::fresh().await;
    let proxy = in_front_of(&test).await;
    let database = connect(&proxy.url(&test.url), Role::Delivery, 4).await;
    let account = Fixture(&test).account("acme").await;
    let transaction = async || {
        let tx = database.begin(&Accounts::one(&account)).await.unwrap();
        assert_eq!(setting(&tx, "signalbox.accounts").await, "acme");
        tx.commit().await.unwrap();
    };
    // Connects, and prepares its statement.
    transaction().await;
    let before = proxy.counts();
    for _ in 0..10 {
        transaction().await;
    }
    let after = proxy.counts();
    let spent = Counts {
        round_trips: after.round_trips - before.round_trips,
        commits: after.commits - before.commits,
    };
    assert_eq!(
        spent,
        Counts {
            round_trips: 30,
            commits: 10
        }
    );
    let tx = database.begin(&Accounts::none()).await.unwrap();
    assert_eq!(
        setting(&tx, "signalbox.accounts").await,
        "",
        "declared for one transaction"
    );
}

#[tokio::test]
async fn an_unfinished_transaction_goes_through_the_pool() {
    let test = TestDatabase::fresh().await;
    let database = connect(&test.url, Role::Owner, 2).await;
    let tx = database.begin(&Accounts::none()).await.unwrap();
    tx.execute_unprepared("create table written (id int)").await.unwrap();
    tx.commit().await.unwrap();
    for round in 0..50 {
        let tx = database.begin(&Accounts::none()).await.unwrap();
        tx.execute_unprepared("insert into written values (1)").await.unwrap();
        match round % 3 {
            0 => tx.commit().await.unwrap(),
            1 => tx.rollback().await.unwrap(),
            _ => drop(tx),
        }
        let seen = test.count("select count(*) from written").await;
        assert_eq!(seen, i64::from(round / 3 + 1), "in round {round}");
    }
    let open = "select count(*) from pg_stat_activity
                where datname = current_database() and state like 'idle in transaction%'";
    testkit::eventually("no transaction is left open", async || {
        (test.count(open).await == 0).then_some(())
    })
    .await;
}

/// Prepared connections are taken from the pool's number; a caller that waits for the pool must not wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_for_the_pool_gets_a_prepared_connection() {
    let test = TestDatabase::fresh().await;
    for connections_max in 1..=3 {
        let database = connect(&test.url, Role::Owner, connections_max).await;
        let work = (0..20).map(|_| {
            let database = database.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let tx = database.begin(&Accounts::none()).await.unwrap();
                    tx.execute_unprepared("select 1").await.unwrap();
                    tx.commit().await.unwrap();
                    // The pool itself is used in between.
                    database.ping().await.unwrap();
                }
            })
        });
        for one in work.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        database.close().await;
        assert!(database.begin(&Accounts::none()).await.is_err(), "closed");
    }
}

#[tokio::test]
async fn statements_of_batches_are_planned_once() {
    let test = TestDatabase::fresh().await;
    let mode = async |database: &Database| {
        let tx = database.begin(&Accounts::none()).await.unwrap();
        let mode = setting(&tx, "plan_cache_mode").await;
        tx.commit().await.unwrap();
        mode
    };
    for role in [Role::Resolver, Role::Delivery, Role::ToolGateway] {
        let database = test.connect(role).await;
        assert_eq!(mode(&database).await, "force_generic_plan");
    }
    let database = test.connect(Role::Orchestrator).await;
    assert_eq!(mode(&database.for_batches()).await, "force_generic_plan");
    assert_eq!(mode(&database).await, "auto", "its lists are not");
}
