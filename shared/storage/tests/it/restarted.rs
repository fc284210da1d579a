//! After a restart of the server, or any other end of all connections, no request fails on an idle connection.

use futures::future::join_all;
use sea_orm::ConnectionTrait;
use storage::{Accounts, Database, DatabaseOptions, Role, Tx, replica::replica_end};
use testkit::TestDatabase;
use uuid::Uuid;

const CONNECTIONS: u32 = 16;

/// Concurrent transactions.
async fn at_once(database: &Database) -> Vec<Tx> {
    let beginning = (0..CONNECTIONS).map(|_| async {
        let tx = database.begin(&Accounts::none()).await.expect("a transaction");
        tx.execute_unprepared("select 1").await.expect("an answer");
        tx
    });
    join_all(beginning).await
}

/// The maximum number of idle connections, all ended by the server.
async fn ended(test: &TestDatabase) -> Database {
    let options = DatabaseOptions {
        connections_max: CONNECTIONS,
        ..DatabaseOptions::default()
    };
    let database = Database::connect(&test.url, Role::Resolver, &options).await.unwrap();
    for tx in at_once(&database).await {
        tx.commit().await.unwrap();
    }
    let pool = database.connections();
    assert_eq!((pool.open, pool.max), (CONNECTIONS, CONNECTIONS));
    let ended = test
        .count(
            "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity
             where datname = current_database() and application_name = 'signalbox-resolver'",
        )
        .await;
    assert_eq!(ended, i64::from(CONNECTIONS));
    database
}

#[tokio::test]
async fn no_transaction_fails_that_begins_on_a_connection_that_has_ended() {
    let test = TestDatabase::fresh().await;
    let database = ended(&test).await;
    for _ in 0..2 * CONNECTIONS {
        let tx = database.begin(&Accounts::none()).await.expect("a transaction");
        tx.execute_unprepared("select 1").await.unwrap();
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_full_pool_of_ended_connections_fails_no_transaction() {
    let test = TestDatabase::fresh().await;
    let database = ended(&test).await;
    for tx in at_once(&database).await {
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn one_failed_statement_retires_all_old_connections() {
    let test = TestDatabase::fresh().await;
    let database = ended(&test).await;
    replica_end(&database, Uuid::now_v7()).await.unwrap_err();
    for _ in 0..2 * CONNECTIONS {
        replica_end(&database, Uuid::now_v7()).await.unwrap();
    }
}

#[tokio::test]
async fn a_ping_survives_ended_connections() {
    let test = TestDatabase::fresh().await;
    let database = ended(&test).await;
    for _ in 0..2 * CONNECTIONS {
        database.ping().await.unwrap();
    }
}
