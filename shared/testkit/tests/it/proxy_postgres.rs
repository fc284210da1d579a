//! The answer to a commit is lost: the server has committed, and the client cannot know.

use sqlx::{Connection, Executor, PgConnection, Row};
use testkit::{NetworkFault, Proxy, TestDatabase};

async fn in_front_of(database: &TestDatabase) -> Proxy {
    let (_, rest) = database.url.rsplit_once('@').unwrap();
    let (authority, _) = rest.split_once('/').unwrap();
    Proxy::postgres(authority.parse().unwrap()).await
}

#[tokio::test]
async fn a_commit_is_done_and_its_answer_is_lost() {
    let database = TestDatabase::fresh().await;
    let proxy = in_front_of(&database).await;
    database.owner.execute("create table witness (id int)").await.unwrap();
    let mut connection = PgConnection::connect(&proxy.url(&database.url)).await.unwrap();
    for id in 0..2 {
        let mut transaction = connection.begin().await.unwrap();
        sqlx::query("insert into witness values ($1)")
            .bind(id)
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
    }
    proxy.lose_commits(1);
    let mut transaction = connection.begin().await.unwrap();
    sqlx::query("insert into witness values (2)")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let rows = sqlx::query("select id from witness")
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(
        rows.iter().map(|row| row.get::<i32, _>(0)).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    transaction.commit().await.unwrap_err();
    assert_eq!(proxy.hits(NetworkFault::LostCommit), 1);
    assert_eq!(database.count("select count(*) from witness").await, 3, "it was done");

    let mut again = PgConnection::connect(&proxy.url(&database.url)).await.unwrap();
    let transaction = again.begin().await.unwrap();
    transaction.commit().await.expect("one was to be lost, and was");
}

#[tokio::test]
async fn a_rollback_is_answered_and_the_next_commit_is_lost() {
    let database = TestDatabase::fresh().await;
    let proxy = in_front_of(&database).await;
    let mut connection = PgConnection::connect(&proxy.url(&database.url)).await.unwrap();
    proxy.lose_commits(1);
    connection.begin().await.unwrap().rollback().await.unwrap();
    assert_eq!(proxy.hits(NetworkFault::LostCommit), 0);
    connection.begin().await.unwrap().commit().await.unwrap_err();
    assert_eq!(proxy.hits(NetworkFault::LostCommit), 1);
}
