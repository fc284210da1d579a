//! One Postgres for many short-lived processes.

use std::fs;
use std::time::Duration;

use devstack::SharedPostgres;
use futures::future::join_all;
use sqlx::{Connection, PgConnection};

use crate::processes::{is_running, open_folder, signal, until};

const IDLE_LIMIT: Duration = Duration::from_secs(1);

async fn count_databases(postgres: &SharedPostgres) -> i64 {
    let mut connection = PgConnection::connect(postgres.database_url()).await.unwrap();
    sqlx::query_scalar("select count(*) from pg_database")
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

fn pid_written(folder: &std::path::Path) -> u32 {
    let state: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("state.json")).unwrap()).unwrap();
    state["pid"].as_u64().unwrap().try_into().unwrap()
}

#[tokio::test]
async fn serves_many_processes_and_ends_without_users() {
    let folder = open_folder();
    let users = join_all((0..8).map(|_| SharedPostgres::in_directory(folder.path(), IDLE_LIMIT))).await;
    let users: Vec<SharedPostgres> = users.into_iter().map(Result::unwrap).collect();
    assert!(users.iter().all(|user| user.database_url() == users[0].database_url()));
    assert_eq!(
        count_databases(&users[0]).await,
        4,
        "two templates, postgres and signalbox"
    );

    let pid = pid_written(folder.path());
    drop(users);
    until("it ends by itself", || {
        !is_running(pid) && !folder.path().join("state.json").exists()
    })
    .await;
    until("its data goes", || !folder.path().join("postgres/cluster").exists()).await;

    let again = SharedPostgres::in_directory(folder.path(), IDLE_LIMIT).await.unwrap();
    assert_ne!(pid_written(folder.path()), pid);
    count_databases(&again).await;
    drop(again);
    until("it ends again", || !folder.path().join("postgres/cluster").exists()).await;
}

#[tokio::test]
async fn starts_anew_over_state_that_fits_nothing() {
    let folder = open_folder();
    let first = SharedPostgres::in_directory(folder.path(), Duration::from_secs(600))
        .await
        .unwrap();
    let pid = pid_written(folder.path());
    // The server crashes: its files stay.
    signal(pid, "QUIT");
    until("the server is gone", || !is_running(pid)).await;

    let second = SharedPostgres::in_directory(folder.path(), IDLE_LIMIT).await.unwrap();
    assert_ne!(first.database_url(), second.database_url());
    assert_eq!(count_databases(&second).await, 4);
    drop((first, second));
    until("it ends by itself", || !folder.path().join("postgres/cluster").exists()).await;
}
