//! Trials of the services: one of two processes is killed, and the other takes over its work.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use sqlx::Row;
use storage::Role;
use time::OffsetDateTime;
use tokio::time::sleep;
use uuid::Uuid;

use super::{
    bench::{Bench, TASKS},
    measured::Measured,
};
use crate::{
    dice::Dice,
    plan::{Process, account_id},
};

/// The same without a fault: the time of a turn on this machine.
pub(super) async fn undisturbed(bench: &mut Bench, dice: &mut Dice, measured: &mut Measured) -> anyhow::Result<()> {
    bench.settle().await?;
    bench.wake_all("message").await?;
    sleep(Duration::from_millis(dice.between(50, 400))).await;
    let since = OffsetDateTime::now_utc();
    bench.wake_all("reply").await?;
    bench.at_rest().await?;
    for ms in bench.next_turns(since).await?.into_values() {
        measured.add("undisturbed: next turn", ms);
    }
    Ok(())
}

/// Kills one of two processes while every session has work, and restarts it at once, as a supervisor does.
pub(super) async fn killed(
    bench: &mut Bench,
    role: Role,
    dice: &mut Dice,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    bench.settle().await?;
    let both: Vec<Process> = Process::all().filter(|process| process.role() == role).collect();
    let process = *dice.pick(&both);
    let work = if role == Role::ToolGateway { "message" } else { "reply" };
    bench.wake_all(work).await?;
    // In the middle of the work.
    sleep(Duration::from_millis(dice.between(50, 400))).await;
    let owners = partition_fences(bench).await?;
    let calling = bench.stub.in_flight_of(&process.name());
    let holder = holder_of(bench, &calling).await?;
    let service = bench.system.service(process);
    let killed_at = {
        let mut life = service.life().await;
        life.kill().await?;
        let killed_at = OffsetDateTime::now_utc();
        service.start(&mut life)?;
        killed_at
    };
    // No other process has taken over yet.
    let mut affected = match role {
        Role::Delivery => held_by(bench, holder).await?,
        Role::ToolGateway => keys(bench, "select key from session where phase = 'waiting'").await?,
        Role::Resolver | Role::Orchestrator | Role::Owner => BTreeSet::new(),
    };
    bench.wake_all("reply").await?;
    bench.at_rest().await?;
    if role == Role::Resolver {
        // Partitions with another reader belonged to the killed process, or were released for an even share.
        let moved = moved(&owners, &partition_fences(bench).await?);
        affected = of_partitions(bench, &moved).await?;
    }
    for (key, ms) in bench.next_turns(killed_at).await? {
        let which = if affected.contains(&key) { "affected" } else { "others" };
        measured.add(format!("kill_{}: {which}", role.service()), ms);
    }
    bench.system.ready(bench.system.service(process)).await
}

/// The replica id of a process, by sessions that it holds.
async fn holder_of(bench: &Bench, keys: &[String]) -> anyhow::Result<Option<Uuid>> {
    const OWNER: &str = "select lease_owner from session where key = any($1) and lease_owner is not null limit 1";
    let row = sqlx::query(OWNER)
        .bind(keys)
        .fetch_optional(&bench.system.observer)
        .await?;
    Ok(row.map(|row| row.get(0)))
}

/// Session keys.
async fn held_by(bench: &Bench, holder: Option<Uuid>) -> anyhow::Result<BTreeSet<String>> {
    const HELD: &str = "select key from session where lease_owner = $1";
    let rows = sqlx::query(HELD).bind(holder).fetch_all(&bench.system.observer).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn keys(bench: &Bench, sql: &'static str) -> anyhow::Result<BTreeSet<String>> {
    let rows = sqlx::query(sql).fetch_all(&bench.system.observer).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn partition_fences(bench: &Bench) -> anyhow::Result<BTreeMap<i32, i64>> {
    let rows = sqlx::query("select partition, fence from resolver_partition")
        .fetch_all(&bench.system.observer)
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn moved(before: &BTreeMap<i32, i64>, after: &BTreeMap<i32, i64>) -> BTreeSet<i32> {
    let changed = after
        .iter()
        .filter(|(partition, fence)| before.get(partition) != Some(fence));
    changed.map(|(partition, _)| *partition).collect()
}

/// Keys of the sessions whose tasks are in these partitions, from the stream.
async fn of_partitions(bench: &Bench, partitions: &BTreeSet<i32>) -> anyhow::Result<BTreeSet<String>> {
    let client = crate::clients::publisher(&bench.system.nats_url).await?;
    let root = contracts::Root::default();
    let jetstream = async_nats::jetstream::new(client);
    let stream = jetstream
        .get_stream(messaging::Stream::Notification.name(&root))
        .await?;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        for partition in partitions {
            let subject = format!("{root}.partition.{partition}.{}.R-{task}", account_id(0));
            if stream.get_last_raw_message_by_subject(&subject).await.is_ok() {
                tasks.push(format!("task:r-{task}:"));
            }
        }
    }
    let all = keys(bench, "select key from session").await?;
    Ok(all
        .into_iter()
        .filter(|key| tasks.iter().any(|task| key.starts_with(task)))
        .collect())
}
