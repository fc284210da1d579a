//! Regression tests of the pool's guard: a future that was dropped half-way must not leave an open transaction behind.
//! In such a transaction the next borrower's acknowledged write would be lost (sqlx 0.9), or would run for another
//! account.

use std::{future::Future, task::Poll};

use futures::FutureExt;
use sea_orm::ConnectionTrait;
use sqlx::{Executor, PgExecutor, Row};
use storage::{Accounts, Database, DatabaseOptions, Role};
use testkit::TestDatabase;

const ROUNDS: i64 = 2_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_after_a_cancelled_begin_is_real() {
    let test = TestDatabase::fresh().await;
    sqlx::query("create table written (id bigint primary key)")
        .execute(&test.owner)
        .await
        .unwrap();
    // One connection, so that the next borrower gets the cancelled one.
    let options = DatabaseOptions {
        connections_max: 1,
        ..DatabaseOptions::default()
    };
    let database = Database::connect(&test.url, Role::Owner, &options).await.unwrap();
    for round in 0..ROUNDS {
        poll_and_drop(database.begin(&Accounts::none()), 1 + round % 6).await;
        database
            .connection()
            .execute_unprepared(&format!("insert into written values ({round})"))
            .await
            .unwrap();
        let seen: i64 = sqlx::query("select count(*) from written where id = $1")
            .bind(round)
            .fetch_one(&test.owner)
            .await
            .unwrap()
            .get(0);
        assert_eq!(seen, 1, "the write of round {round} was acknowledged and is not there");
    }
    let idle: i64 = test
        .count("select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'")
        .await;
    assert_eq!(idle, 0);
}

/// sqlx rolls back a `begin()` that got as far as declaring its accounts. It does not roll back a transaction that it
/// does not count: here such a transaction has declared an account when its future is dropped.
#[tokio::test]
async fn declared_accounts_do_not_reach_the_next_borrower() {
    let test = TestDatabase::fresh().await;
    let options = DatabaseOptions {
        connections_max: 1,
        ..DatabaseOptions::default()
    };
    let database = Database::connect(&test.url, Role::Delivery, &options).await.unwrap();
    let pool = database.connection().get_postgres_connection_pool().clone();
    let (declared, seen) = tokio::sync::oneshot::channel();
    let borrower = async move {
        let mut connection = pool.acquire().await.unwrap();
        // Not `begin()`: as after one that was dropped half-way, the server has an open transaction and sqlx counts
        // none.
        connection.execute("begin").await.unwrap();
        connection
            .execute("select set_config('signalbox.accounts', 'acme', true)")
            .await
            .unwrap();
        declared.send(declared_accounts(&mut *connection).await).unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = borrower => unreachable!("it waits for ever"),
        accounts = seen => assert_eq!(accounts.unwrap(), "acme", "declared, in a transaction that is open"),
    }
    let pool = database.connection().get_postgres_connection_pool();
    assert_eq!(
        declared_accounts(pool).await,
        "",
        "the next borrower of the one connection"
    );
}

async fn declared_accounts<'c>(connection: impl PgExecutor<'c>) -> String {
    sqlx::query_scalar("select coalesce(current_setting('signalbox.accounts', true), '')")
        .fetch_one(connection)
        .await
        .unwrap()
}

/// Polls a future a few times, letting the runtime turn in between, and drops it.
async fn poll_and_drop<F: Future>(future: F, polls: i64) {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        let poll = futures::future::poll_fn(|context| Poll::Ready(future.poll_unpin(context).is_ready())).await;
        if poll {
            return;
        }
        tokio::task::yield_now().await;
    }
}
