//! The trial of a broker that loses its store: accepted notifications are in Postgres, and all are delivered.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::json;
use sqlx::Row;
use storage::Role;
use tempfile::TempDir;
use time::OffsetDateTime;

use super::{bench::Bench, measured::Measured};
use crate::{
    arguments::RecoveryArguments,
    plan::{AGENTS, account_id},
    provider::Pace,
    records::Answer,
};

/// No turn waits for the provider.
const PACE: Pace = Pace {
    think_ms: (0, 0),
    think_long_ms: (0, 0),
};
const LIMIT: Duration = Duration::from_secs(600);

/// The broker's store is lost while so many notifications wait, each in its own session: all wake-ups are lost, and all
/// notifications are delivered.
pub(super) async fn wiped(arguments: &RecoveryArguments, nth: usize, measured: &mut Measured) -> anyhow::Result<()> {
    let directory = TempDir::with_prefix("signalbox-recovery-")?;
    let bench = Bench::open(directory.path(), PACE, arguments.seed + nth as u64).await?;
    let system = &bench.system;
    for service in system.of_role(Role::Delivery) {
        service.life().await.kill().await?;
    }
    let subject = |number: usize| format!("signalbox.notification.{}.W-{number}", account_id(0));
    for part in (0..arguments.in_flight).collect::<Vec<_>>().chunks(200) {
        let clients = &bench.clients;
        let publishing = part.iter().map(|number| async move {
            let payload = json!({"id": format!("w-{number}"), "agent": AGENTS[0], "body": "work=reply effect=w;"});
            clients
                .publish(subject(*number), Bytes::from(payload.to_string()))
                .await
        });
        if let Some(answer) = futures::future::join_all(publishing)
            .await
            .iter()
            .find(|one| **one != Answer::Accepted)
        {
            bail!("a notification was not taken: {answer:?}");
        }
    }
    let total = i64::try_from(arguments.in_flight).context("a number of notifications")?;
    const WAITING: &str = "select count(*) from notification where state = 'queued'";
    bench.until("all wait", WAITING, total, LIMIT).await?;
    for service in system.of_role(Role::Delivery) {
        service.start(&mut *service.life().await)?;
    }
    // Some are in progress at that time.
    bench
        .until_more_than("turns begin", "select count(*) from turn", 50)
        .await?;
    let left = bench
        .count("select count(*) from notification where state <> 'delivered'")
        .await?;
    let accepts = {
        let mut nats = system.nats.lock().await;
        nats.wipe_store().await?;
        nats.restart().await?;
        OffsetDateTime::now_utc()
    };
    const DELIVERED: &str = "select count(*) from notification where state = 'delivered'";
    bench.until("all are delivered", DELIVERED, total, LIMIT).await?;
    const FIRST: &str = "select min(started_at) from turn where started_at > $1";
    const BEGUN: &str = "select max(started_at) from turn";
    const LAST: &str = "select max(finished_at) from turn";
    let first: OffsetDateTime = sqlx::query(FIRST)
        .bind(accepts)
        .fetch_one(&system.observer)
        .await?
        .get(0);
    let begun: OffsetDateTime = sqlx::query(BEGUN).fetch_one(&system.observer).await?.get(0);
    let last: OffsetDateTime = sqlx::query(LAST).fetch_one(&system.observer).await?.get(0);
    let ms = |moment: OffsetDateTime| i64::try_from((moment - accepts).whole_milliseconds()).unwrap_or(i64::MAX);
    measured.add("nats_wiped: first turn", ms(first));
    measured.add("nats_wiped: last turn begun", ms(begun));
    measured.add("nats_wiped: all delivered", ms(last));
    let turns = bench.count("select count(*) from turn").await?;
    measured.note(format!(
        "nats_wiped: {total} in flight, {left} of them not delivered when the store went; delivered {total} in {turns} turns, \
         lost 0"
    ));
    system.stop().await
}
