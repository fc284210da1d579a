//! Several resolvers: they share the partitions, and hand them over without losing or reordering messages. A partition
//! whose batch waits for a lock stops neither the others nor their release.

use std::collections::BTreeMap;

use resolver::store::partitions::{partitions_claim, partitions_ensure};
use storage::{
    Role,
    replica::{Presence, replica_register},
};
use testkit::eventually;
use uuid::Uuid;

use crate::stream::{Stage, stage};

/// The number of partitions of each live replica, the fewest first.
async fn shares(stage: &Stage) -> Vec<i64> {
    let rows: Vec<(i64,)> = sqlx::query_as(
        "select count(*) from resolver_partition p join replica r on r.id = p.owner and r.lease_until > now()
         group by p.owner order by 1",
    )
    .fetch_all(&stage.world.database.owner)
    .await
    .unwrap();
    rows.into_iter().map(|row| row.0).collect()
}

async fn until_shares(stage: &Stage, expected: &[i64]) {
    eventually("the partitions are shared", || async {
        (shares(stage).await == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_share_and_take_over() {
    let stage = stage().await;
    let first = stage.resolver().await;
    until_shares(&stage, &[8]).await;
    let second = stage.resolver().await;
    until_shares(&stage, &[4, 4]).await;
    let third = stage.resolver().await;
    until_shares(&stage, &[2, 3, 3]).await;
    // An orderly stop releases at once, a crash when the lease expires.
    second.stop().await;
    until_shares(&stage, &[4, 4]).await;
    third.cut_off();
    until_shares(&stage, &[8]).await;
    first.stop().await;
}

/// A dead process is replaced as soon as the server has noticed that its connection is gone, before its lease expires.
/// A process without a registered connection, as in older versions, keeps its partitions until its lease expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn partitions_are_free_when_the_connection_of_their_reader_has_ended() {
    const HOUR_MS: i64 = 60 * 60 * 1000;
    let stage = stage().await;
    let database = stage.world.database.connect(Role::Resolver).await;
    partitions_ensure(&database, 8).await.unwrap();
    let (older, dying) = (Uuid::now_v7(), Uuid::now_v7());
    let presence = Presence::show(&database, dying).await.unwrap();
    replica_register(&database, older, HOUR_MS, None).await.unwrap();
    replica_register(&database, dying, HOUR_MS, Some(&presence))
        .await
        .unwrap();
    for replica in [older, dying] {
        assert_eq!(partitions_claim(&database, replica, 4).await.unwrap().len(), 4);
    }
    let of = async |replica: Uuid| -> i64 {
        sqlx::query_scalar("select count(*) from resolver_partition where owner = $1")
            .bind(replica)
            .fetch_one(&stage.world.database.owner)
            .await
            .unwrap()
    };
    let free = partitions_claim(&database, Uuid::now_v7(), 8).await.unwrap();
    assert!(free.is_empty(), "both resolvers are alive");
    let running = stage.resolver().await;
    drop(presence);
    until_shares(&stage, &[4, 4]).await;
    eventually("the newcomer reads what the dead one did", async || {
        (of(dying).await == 0).then_some(())
    })
    .await;
    assert_eq!(of(older).await, 4);
    running.stop().await;
}

/// One task in each partition, whose session is open: publishes tasks until every partition has one.
async fn task_of_each_partition(stage: &Stage) -> BTreeMap<i32, String> {
    let mut tasks = BTreeMap::new();
    for n in 1_i64.. {
        if tasks.len() == 8 {
            break;
        }
        let task = format!("t-{n}");
        stage.publish(&task, &format!("first-{n}"), "b").await;
        stage
            .until_count(
                "a notification queued",
                "select max(sequence) from resolver_partition",
                n,
            )
            .await;
        let partition: i32 =
            sqlx::query_scalar("select partition from resolver_partition order by sequence desc limit 1")
                .fetch_one(&stage.world.database.owner)
                .await
                .unwrap();
        tasks.insert(partition, task);
    }
    tasks
}

/// Locks the sessions of tasks until the transaction is dropped.
async fn locked<'t>(
    stage: &Stage,
    tasks: impl Iterator<Item = &'t String>,
) -> sqlx::Transaction<'static, sqlx::Postgres> {
    let tasks: Vec<&String> = tasks.collect();
    let mut holder = stage.world.database.owner.begin().await.unwrap();
    let sessions = sqlx::query("select id from session where task_id = any ($1) for update")
        .bind(&tasks)
        .fetch_all(&mut *holder)
        .await
        .unwrap();
    assert_eq!(sessions.len(), tasks.len());
    holder
}

/// Waits until this many statements wait for locks, each for longer than a batch with a write permit does: a reader that
/// stops in that time ends before its next try, and waits for nothing.
async fn until_waiting(stage: &Stage, statements: i64) {
    let waiting = "select count(*) from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock'
                     and query_start < clock_timestamp() - interval '500 milliseconds'";
    stage.until_count("batches wait for locks", waiting, statements).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_that_wait_for_locks_do_not_block_other_partitions() {
    let mut stage = stage().await;
    // Longer than the test: only the short timeout of a batch with a write permit ends a wait.
    stage.world.set("database.statement_timeout_ms", 600_000);
    stage.world.set("database.lock_timeout_ms", 300_000);
    let running = stage.resolver().await;
    let tasks = task_of_each_partition(&stage).await;
    let holder = locked(&stage, tasks.values().skip(1)).await;
    for task in tasks.values().skip(1) {
        stage.publish(task, &format!("held-{task}"), "b").await;
    }
    // All seven, although fewer batches write at once.
    until_waiting(&stage, 7).await;
    stage.publish(&tasks[&0], "free", "b").await;
    let free = "select count(*) from notification where id = 'free'";
    stage.until_count("the free partition is read", free, 1).await;
    holder.rollback().await.unwrap();
    let held = "select count(*) from notification where id like 'held-%'";
    stage.until_count("the others are read", held, 7).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_partition_that_waits_for_a_lock_does_not_delay_the_release_of_others() {
    let mut stage = stage().await;
    stage.world.set("database.statement_timeout_ms", 600_000);
    stage.world.set("database.lock_timeout_ms", 300_000);
    let first = stage.resolver().await;
    let tasks = task_of_each_partition(&stage).await;
    // The last partition is the first that a resolver gives up.
    let holder = locked(&stage, tasks.values().skip(7)).await;
    stage.publish(&tasks[&7], "held", "b").await;
    until_waiting(&stage, 1).await;
    let second = stage.resolver().await;
    until_shares(&stage, &[3, 5]).await;
    holder.rollback().await.unwrap();
    until_shares(&stage, &[4, 4]).await;
    let held = "select count(*) from notification where id = 'held'";
    stage.until_count("the notification is read", held, 1).await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_doubled_or_reordered_while_replicas_come_and_go() {
    let stage = stage().await;
    let tasks = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"];
    let mut expected: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut running = vec![stage.resolver().await];
    for round in 0..6 {
        for n in 0..8 {
            for task in tasks {
                let id = format!("{task}-{round}-{n}");
                stage.publish(task, &id, "b").await;
                expected.entry(task).or_default().push(id);
            }
        }
        match round {
            0 | 1 => running.push(stage.resolver().await),
            2 => running.remove(0).stop().await,
            3 => running.remove(0).cut_off(),
            _ => running.push(stage.resolver().await),
        }
    }
    stage
        .until_count(
            "everything queued",
            "select count(*) from notification where state = 'queued'",
            480,
        )
        .await;
    for (task, ids) in expected {
        assert_eq!(stage.ids(&task.to_lowercase()).await, ids);
    }
    assert_eq!(stage.world.database.count("select count(*) from session").await, 10);
    assert_eq!(
        stage
            .world
            .database
            .count("select sum(queued)::bigint from session")
            .await,
        480
    );
}
