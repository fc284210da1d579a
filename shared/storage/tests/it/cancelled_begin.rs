//! The regression test of the pool's guard: a `begin()` that is dropped half-way must not leave an open transaction
//! behind, in which the next borrower's acknowledged write would be lost (sqlx 0.9).

use std::{future::Future, task::Poll};

use futures::FutureExt;
use sea_orm::ConnectionTrait;
use sqlx::Row;
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
    // One connection, so that whoever comes next gets the one that was cancelled.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_do_not_survive_into_the_next_borrower() {
    let test = TestDatabase::fresh().await;
    let options = DatabaseOptions {
        connections_max: 1,
        ..DatabaseOptions::default()
    };
    let database = Database::connect(&test.url, Role::Delivery, &options).await.unwrap();
    let account = domain::AccountId::parse("acme").unwrap();
    for round in 0..500 {
        poll_and_drop(database.begin(&Accounts::one(&account)), 1 + round % 9).await;
        let row = database
            .connection()
            .query_one_raw(storage::statement(
                "select coalesce(current_setting('signalbox.accounts', true), '') as a",
                [],
            ))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(row.try_get::<String>("", "a").unwrap(), "", "round {round}");
    }
}

/// Polls a future a few times, letting the runtime turn in between, and drops it wherever it is.
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
