//! Trials of the servers: NATS or Postgres restarts, or NATS becomes silent.

use std::time::Duration;

use anyhow::Context;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::{LIMIT, POLL, bench::Bench, measured::Measured};
use crate::system::signal;

#[derive(Clone, Copy)]
pub(super) enum Server {
    Nats,
    Postgres,
}

impl Server {
    pub(super) const ALL: [Server; 2] = [Server::Nats, Server::Postgres];

    pub(super) fn trial(self) -> &'static str {
        match self {
            Server::Nats => "nats_restart",
            Server::Postgres => "postgres_restart",
        }
    }
}

/// Kills the server while every session has work, and restarts it at once. Measured from the time when it accepts connections.
pub(super) async fn restarted(bench: &mut Bench, server: Server, measured: &mut Measured) -> anyhow::Result<()> {
    bench.settle().await?;
    bench.wake_all("message").await?;
    match server {
        Server::Nats => {
            let mut nats = bench.system.nats.lock().await;
            nats.kill().await?;
            nats.restart().await?;
        }
        Server::Postgres => {
            let mut postgres = bench.system.postgres.lock().await;
            postgres.crash().await?;
            postgres.restart().await?;
        }
    }
    let accepts = OffsetDateTime::now_utc();
    bench.wake_all("reply").await?;
    bench.at_rest().await?;
    for ms in bench.next_turns(accepts).await?.into_values() {
        measured.add(format!("{}: next turn", server.trial()), ms);
    }
    Ok(())
}

/// The server is silent, and its connections stay open.
pub(super) async fn half_open(bench: &mut Bench, measured: &mut Measured) -> anyhow::Result<()> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(3))
        .build()?;
    let nats = bench.system.nats.lock().await;
    let pid = nats.pid().context("nats-server runs")?;
    signal(&[pid], "STOP").await?;
    let begun = Instant::now();
    let mut unaware: Vec<_> = bench.system.services.iter().collect();
    while !unaware.is_empty() && begun.elapsed() < LIMIT {
        let mut left = Vec::new();
        for service in unaware {
            let answer = client.get(format!("{}/readyz", service.url())).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                left.push(service);
            } else {
                let ms = i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX);
                measured.add("nats_half_open: noticed", ms);
            }
        }
        unaware = left;
        sleep(POLL).await;
    }
    signal(&[pid], "CONT").await?;
    drop(nats);
    for service in &bench.system.services {
        bench.system.ready(service).await?;
    }
    Ok(())
}
