//! The age of queued work and of messages, for the gauges: over all accounts, and ages only.

use std::time::Duration;

use storage::{
    Role,
    directory::{Waiting, WaitingRound},
    outbox::outbox_age,
};
use testkit::{Fixture, TestDatabase, rows};
use time::OffsetDateTime;

/// A session with notifications that were accepted so many minutes ago, in the order of its queue.
async fn session(test: &TestDatabase, account: &str, key: &str, minutes: &[i32]) {
    let opened = rows("session")
        .with("account_id", account)
        .with("user_id", key)
        .with("queued", 1);
    opened.insert(&test.owner).await;
    let queue = format!(
        "session s, unnest(array{minutes:?}::integer[]) with ordinality n (minutes, place) where s.user_id = '{key}'"
    );
    let queued = rows("notification")
        .set("id", "concat(s.user_id, place)")
        .set("position", "place");
    let queued = queued.set("created_at", "now() - minutes * interval '1 minute'");
    queued.from(queue).insert(&test.owner).await;
}

fn minutes(waiting: Waiting) -> Option<i64> {
    waiting
        .oldest
        .map(|oldest| (OffsetDateTime::now_utc() - oldest).whole_minutes())
}

#[tokio::test]
async fn what_has_waited_longest_is_found_wherever_it_is_and_forgotten_when_its_turn_came() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Delivery).await;
    let mut round = WaitingRound::default();
    assert_eq!(round.look(&database, 2).await.unwrap(), Waiting::default());

    for account in ["acme", "zeta"] {
        Fixture(&test).account(account).await;
    }
    session(&test, "acme", "a", &[5, 4]).await;
    session(&test, "acme", "b", &[7]).await;
    session(&test, "zeta", "c", &[90, 80, 70]).await;
    session(&test, "zeta", "d", &[]).await;
    let first = round.look(&database, 2).await.unwrap();
    assert_eq!((first.sessions, minutes(first)), (2, Some(7)), "a page");
    let second = round.look(&database, 2).await.unwrap();
    assert_eq!((second.sessions, minutes(second)), (3, Some(90)), "the round is whole");

    let taken = "update notification set state = 'running' where account_id = 'zeta' and created_at < now() - interval '75 minutes'";
    sqlx::query(taken).execute(&test.owner).await.unwrap();
    for _ in 0..2 {
        round.look(&database, 2).await.unwrap();
    }
    let later = round.look(&database, 2).await.unwrap();
    assert_eq!(
        (later.sessions, minutes(later)),
        (3, Some(70)),
        "the head of the queue is another"
    );
}

#[tokio::test]
async fn the_outbox_is_as_old_as_its_oldest_row_that_no_broker_has() {
    let test = TestDatabase::fresh().await;
    let database = test.connect(Role::Delivery).await;
    assert_eq!(outbox_age(&database).await.unwrap(), None);
    sqlx::query(
        "insert into outbox (account_id, id, service, subject, headers, payload, created_at, stored_at)
         values ('acme', gen_random_uuid(), 'resolver', 's', '{}', '', now() - interval '3 hours', null),
                ('acme', gen_random_uuid(), 'delivery', 's', '{}', '', now() - interval '2 hours', now()),
                ('acme', gen_random_uuid(), 'delivery', 's', '{}', '', now() - interval '1 hour', null),
                ('acme', gen_random_uuid(), 'delivery', 's', '{}', '', now(), null)",
    )
    .execute(&test.owner)
    .await
    .unwrap();
    let age = outbox_age(&database).await.unwrap().unwrap();
    let hour = Duration::from_secs(3600);
    assert!(hour <= age && age < hour + Duration::from_secs(600), "{age:?}");
}
