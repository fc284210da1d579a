//! Peers: programs of others that do W from `bench/peers`, as their users would. A peer is fed directly, without NATS, calls the same
//! provider, and records one row a turn in the same Postgres. Its README says what each does and does not do.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use crate::{
    client::Caller,
    floor,
    stage::Stage,
    started::{Started, complete},
    subject::free_port,
    work::{Work, body},
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
/// Unanswered requests at most, as when notifications are published on NATS.
const IN_FLIGHT: usize = 256;
/// Jobs added by one statement.
const JOBS: usize = 100;
const REGISTER_LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    /// With its default settings, and one job at a time for each session.
    Graphile,
    /// With a local queue, and jobs completed in batches.
    GraphileTuned,
    /// With its default settings.
    Restate,
    /// With four partitions instead of 24.
    RestateFour,
    /// The same, and its service is in Rust instead of JavaScript.
    RestateRust,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Graphile => "graphile-worker",
            Self::GraphileTuned => "graphile-worker, tuned",
            Self::Restate => "restate",
            Self::RestateFour => "restate, 4 partitions",
            Self::RestateRust => "restate, 4 partitions, Rust",
        }
    }

    fn is_restate(self) -> bool {
        matches!(self, Self::Restate | Self::RestateFour | Self::RestateRust)
    }

    pub(crate) async fn prepare(self, stage: &Stage) -> anyhow::Result<()> {
        if !Path::new(FOLDER).join("node_modules").is_dir() {
            bail!("the peers are not installed: `make bench-peers` does it");
        }
        sqlx::raw_sql(floor::SCHEMA)
            .execute(&stage.observer)
            .await
            .context("the peers' schema")?;
        if self.is_restate() {
            return Ok(());
        }
        let mut schema = Command::new(format!("{FOLDER}/node_modules/.bin/graphile-worker"));
        schema.args(["--schema-only", "--connection", &stage.database_url]);
        complete("graphile-worker", schema).await
    }

    pub(crate) fn start(self, stage: &Stage) -> anyhow::Result<Started> {
        let mut started = Started::none();
        if !self.is_restate() {
            let mut worker = node("graphile.mjs", stage);
            if self == Self::GraphileTuned {
                worker.env("TUNED", "1");
            }
            started.add(&stage.directory, "graphile-worker".to_owned(), worker, None)?;
            return Ok(started);
        }
        let ports = RestatePorts::free()?;
        let mut server = Command::new(format!(
            "{FOLDER}/node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
        ));
        server
            .arg("--no-logo")
            .env("RESTATE_BASE_DIR", stage.directory.join("restate"))
            .env("RESTATE_LISTEN_MODE", "tcp")
            .env("RESTATE_DISABLE_TELEMETRY", "true")
            .env("RESTATE_LOG_FILTER", "error")
            .env("RESTATE_BIND_ADDRESS", format!("127.0.0.1:{}", ports.node))
            .env("RESTATE_INGRESS__BIND_ADDRESS", format!("127.0.0.1:{}", ports.ingress))
            .env("RESTATE_ADMIN__BIND_ADDRESS", format!("127.0.0.1:{}", ports.admin));
        if self != Self::Restate {
            server.env("RESTATE_DEFAULT_NUM_PARTITIONS", "4");
        }
        let ready_url = format!("http://127.0.0.1:{}/restate/health", ports.ingress);
        started.add(&stage.directory, "restate-server".to_owned(), server, Some(ready_url))?;
        let mut service = match self {
            Self::RestateRust => with_servers(Command::new(restate_service()?), stage),
            _ => node("restate.mjs", stage),
        };
        service.env("PORT", ports.service.to_string());
        started.add(&stage.directory, "restate-service".to_owned(), service, None)?;
        started.restate = Some(ports);
        Ok(started)
    }

    /// Adds all notifications, and waits until the peer has taken them.
    pub(crate) async fn feed(self, stage: &Stage, started: Option<RestatePorts>, work: &Work) -> anyhow::Result<()> {
        let turns = (0..work.notifications).map(|number| {
            let pair = work.pair(number);
            (
                pair,
                json!({"place": number, "session": pair, "body": body(pair, number, work.body_bytes)}),
            )
        });
        match started {
            Some(ports) => send(ports, turns).await,
            None => add_jobs(&stage.observer, turns).await,
        }
    }
}

fn node(program: &str, stage: &Stage) -> Command {
    let mut command = Command::new("node");
    command.arg(format!("{FOLDER}/{program}")).env("NODE_ENV", "production");
    with_servers(command, stage)
}

fn with_servers(mut command: Command, stage: &Stage) -> Command {
    command
        .env("DATABASE_URL", &stage.database_url)
        .env("PROVIDER_URL", &stage.provider.url);
    command
}

/// Built beside this program.
fn restate_service() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("could not find this program's path")?;
    let target = own.parent().and_then(Path::parent).context("no target folder")?;
    Ok(target.join("peers/release/restate-service"))
}

async fn add_jobs(observer: &PgPool, turns: impl Iterator<Item = (u32, Value)>) -> anyhow::Result<()> {
    let jobs: Vec<Value> = turns
        .map(|(pair, turn)| json!({"identifier": "turn", "payload": turn, "queue_name": format!("s-{pair}")}))
        .collect();
    for jobs in jobs.chunks(JOBS) {
        sqlx::query(
            "select /* bench */ count(*) from graphile_worker.add_jobs(
                 array(select json_populate_recordset(null::graphile_worker.job_spec, $1::json)))",
        )
        .bind(Value::from(jobs))
        .execute(observer)
        .await
        .context("could not add jobs")?;
    }
    Ok(())
}

/// In order: a window of requests is open, and sessions take turns.
async fn send(ports: RestatePorts, turns: impl Iterator<Item = (u32, Value)>) -> anyhow::Result<()> {
    let caller = Caller::new(IN_FLIGHT);
    let sends = turns.map(|(pair, turn)| {
        let caller = caller.clone();
        async move {
            let url = format!("http://127.0.0.1:{}/session/{pair}/turn/send", ports.ingress);
            let sent = caller.post(url.parse().context("a URL")?, turn.to_string().into_bytes());
            sent.await.map(drop)
        }
    });
    stream::iter(sends).buffered(IN_FLIGHT).try_collect().await
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RestatePorts {
    node: u16,
    ingress: u16,
    admin: u16,
    service: u16,
}

impl RestatePorts {
    fn free() -> anyhow::Result<RestatePorts> {
        Ok(RestatePorts {
            node: free_port()?,
            ingress: free_port()?,
            admin: free_port()?,
            service: free_port()?,
        })
    }

    /// Tells the server of the service, once both run.
    pub(crate) async fn register(self) -> anyhow::Result<()> {
        let (caller, deadline) = (Caller::new(1), Instant::now() + REGISTER_LIMIT);
        let url = format!("http://127.0.0.1:{}/deployments", self.admin);
        let deployment = json!({"uri": format!("http://127.0.0.1:{}", self.service)}).to_string();
        while let Err(error) = caller
            .post(url.parse().context("a URL")?, deployment.clone().into_bytes())
            .await
        {
            if Instant::now() > deadline {
                return Err(error.context("Restate did not register the service"));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}
