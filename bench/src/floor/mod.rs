//! The floor: the smallest program that does W without losing, doubling or reordering anything. It has no closing sessions, leases,
//! prompts, tools, API or walls between tenants: batches from the stream into Postgres ([`intake`]), one call at a time for each
//! pair ([`line`]), batches of outcomes back ([`record`]). The difference between its figures and Signalbox's is the cost of
//! Signalbox's guarantees.
//!
//! In two processes it shows the least cost of two services and a second stream.

mod intake;
mod line;
mod record;
mod second;

use std::process::ExitCode;

use anyhow::Context;
use async_nats::jetstream;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use tokio_postgres::NoTls;

use crate::{
    arguments::{FloorArguments, FloorPart},
    client::Caller,
    figures::{self, Latency},
    load, print,
};

pub(crate) const NATS_URL: &str = "FLOOR_NATS_URL";
pub(crate) const DATABASE_URL: &str = "FLOOR_DATABASE_URL";
pub(crate) const PROVIDER_URL: &str = "FLOOR_PROVIDER_URL";

/// The stream of notifications, and the second stream.
pub(crate) const STREAM: &str = "FLOOR";
pub(crate) const SECOND_STREAM: &str = "FLOOR_TURNS";
pub(crate) const SECOND_SUBJECT: &str = "floor.turn";

/// Rows of one transaction at most. Messages that arrive meanwhile form the next batch, so no message waits for a batch to fill.
const BATCH_MAX: usize = 500;

pub(crate) const SCHEMA: &str = "
create table session (
    id      bigint generated always as identity primary key,
    account text not null,
    task    text not null,
    agent   text not null
);
create unique index session_pair on session (account, task, agent);
create table notification (
    place      bigint primary key,
    session_id bigint not null,
    payload    text not null
);
create table turn (
    place      bigint primary key,
    session_id bigint not null,
    reply      text not null
);";

/// A notification in progress.
pub(crate) struct Job {
    /// Its sequence in the stream of notifications.
    pub(crate) place: i64,
    pub(crate) session: i64,
    pub(crate) payload: String,
    pub(crate) reply: String,
    /// Acknowledged when the outcome is recorded.
    pub(crate) message: Option<jetstream::Message>,
}

/// Runs until SIGTERM, then prints the latencies.
pub(crate) async fn run(arguments: FloorArguments) -> anyhow::Result<ExitCode> {
    let jetstream = jetstream::new(load::connect(&env(NATS_URL)?).await?);
    let mut terminated = signal(SignalKind::terminate()).context("could not listen for signals")?;
    let (done, mut latencies) = mpsc::channel(4 * BATCH_MAX);
    let work = async {
        match arguments.part {
            FloorPart::Whole => {
                let line = line::start(provider(arguments)?, arguments.in_flight, database().await?, done);
                intake::to_line(&jetstream, database().await?, line).await
            }
            FloorPart::Intake => {
                drop(done);
                intake::to_stream(&jetstream, database().await?).await
            }
            FloorPart::Turns => {
                let line = line::start(provider(arguments)?, arguments.in_flight, database().await?, done);
                second::to_line(&jetstream, line).await
            }
        }
    };
    let mut histogram = figures::histogram();
    let collecting = async {
        while let Some(latency_us) = latencies.recv().await {
            histogram.saturating_record(latency_us);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = work => ended?,
        () = collecting => {}
        _ = terminated.recv() => {}
    }
    print::print(&serde_json::to_string(&Latency::of(&histogram))?);
    Ok(ExitCode::SUCCESS)
}

fn provider(arguments: FloorArguments) -> anyhow::Result<line::Provider> {
    Ok(line::Provider {
        caller: Caller::new(arguments.in_flight),
        url: env(PROVIDER_URL)?.parse().context("invalid URL of the provider")?,
    })
}

/// A connection of its own for one task.
async fn database() -> anyhow::Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(&env(DATABASE_URL)?, NoTls)
        .await
        .context("could not connect to Postgres")?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            print::say(&format!("the floor lost its connection to Postgres: {error}"));
        }
    });
    // As in the services: plans must not depend on the time of the last `analyze`.
    client
        .batch_execute("set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off")
        .await
        .context("could not set up a connection")?;
    Ok(client)
}

fn env(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set"))
}
