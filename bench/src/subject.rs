//! The subjects: Signalbox as deployed, with four service processes; the floor, in one process or two; peers.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use async_nats::jetstream::{self, stream};
use contracts::Root;
use messaging::User;
use runtime::context;
use sqlx::PgPool;
use storage::Role;
use time::OffsetDateTime;
use tokio::{process::Command, time::Instant};

use crate::{
    floor, load,
    peers::Peer,
    people,
    stage::{CALLOUT, Stage},
    started::{READY, Started, complete},
    stored,
    work::{AGENT, Pace, TASKS_AN_ACCOUNT, Work, account},
};

pub(crate) const SERVICES: [Role; 4] = [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator];
/// The envelope key of the services.
const ENVELOPE: (&str, &str) = (
    "SIGNALBOX__ENVELOPE__KEYS__BENCH",
    "6120626561636f6e207468617420697320666f722062656e63686573206f6e6c",
);
pub(crate) const OPERATOR_TOKEN: &str = "operator-token-of-a-benchmark";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    Signalbox,
    Floor,
    /// Two processes and a second stream between them.
    FloorInTwo,
    Peer(Peer),
}

impl Subject {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Signalbox => "signalbox",
            Self::Floor => "floor",
            Self::FloorInTwo => "floor-2",
            Self::Peer(peer) => peer.name(),
        }
    }

    /// Whether the broker has a user for each service.
    pub(crate) fn has_users(self) -> bool {
        self == Self::Signalbox
    }

    /// Creates schema, streams, accounts, agents and tasks.
    pub(crate) async fn prepare(self, stage: &Stage, work: &Work) -> anyhow::Result<()> {
        match self {
            Self::Signalbox => {
                migrate(stage).await?;
                if stage.is_filled {
                    return Ok(());
                }
                fill(&stage.observer, work).await
            }
            Self::Peer(peer) => peer.prepare(stage).await,
            Self::Floor | Self::FloorInTwo => {
                sqlx::raw_sql(floor::SCHEMA)
                    .execute(&stage.observer)
                    .await
                    .context("the floor's schema")?;
                let jetstream = jetstream::new(load::connect(stage.nats.url()).await?);
                let notifications = format!("{}.notification.>", Root::default());
                for (name, subject) in [
                    (floor::STREAM, notifications),
                    (floor::SECOND_STREAM, format!("{}.>", floor::SECOND_SUBJECT)),
                ] {
                    let config = stream::Config {
                        name: name.to_owned(),
                        subjects: vec![subject],
                        ..stream::Config::default()
                    };
                    jetstream.create_stream(config).await.context("the floor's streams")?;
                }
                Ok(())
            }
        }
    }

    pub(crate) async fn start(self, stage: &Stage, work: &Work, program: Option<&Path>) -> anyhow::Result<Started> {
        let begun = Instant::now();
        let mut started = match self {
            Self::Signalbox => services(stage, work)?,
            Self::Floor => floor_processes(stage, work, program, &["whole"])?,
            Self::FloorInTwo => floor_processes(stage, work, program, &["intake", "turns"])?,
            Self::Peer(peer) => peer.start(stage)?,
        };
        for process in 0..started.processes.len() {
            started.until_ready(process).await?;
        }
        if let Some(restate) = started.restate {
            restate.register().await?;
        }
        started.ready_in = begun.elapsed();
        Ok(started)
    }

    /// Number of recorded outcomes since then, by the sessions' counters, which is a cheap query.
    pub(crate) async fn recorded(self, observer: &PgPool, since: OffsetDateTime) -> anyhow::Result<u32> {
        let statement = match self {
            Self::Signalbox => RECORDED,
            Self::Floor | Self::FloorInTwo | Self::Peer(_) => {
                "select /* bench */ count(*) from turn where $1 is not null"
            }
        };
        count(observer, statement, since).await
    }

    /// Number of replies in threads, without messages that tools posted. The floor has none.
    pub(crate) async fn replies(self, observer: &PgPool, since: OffsetDateTime) -> anyhow::Result<Option<u32>> {
        match self {
            Self::Signalbox => count(observer, REPLIES, since).await.map(Some),
            Self::Floor | Self::FloorInTwo | Self::Peer(_) => Ok(None),
        }
    }

    /// Counts outcomes row by row: finished turns, and delivered notifications.
    pub(crate) async fn outcomes(self, observer: &PgPool, since: OffsetDateTime) -> anyhow::Result<(u32, u32)> {
        match self {
            Self::Signalbox => Ok((
                count(observer, TURNS, since).await?,
                count(observer, DELIVERED, since).await?,
            )),
            Self::Floor | Self::FloorInTwo | Self::Peer(_) => {
                let recorded = self.recorded(observer, since).await?;
                Ok((recorded, recorded))
            }
        }
    }
}

async fn count(observer: &PgPool, statement: &'static str, since: OffsetDateTime) -> anyhow::Result<u32> {
    let count: i64 = sqlx::query_scalar(statement)
        .bind(since)
        .fetch_one(observer)
        .await
        .context("could not count recorded outcomes")?;
    u32::try_from(count).context("a number of notifications")
}

/// Begun turns without those in progress. Every session of a run is opened in the run, so old data is not read.
const RECORDED: &str = "\
select /* bench */ ((select coalesce(sum(turn_count), 0) from session where opened_at >= $1)
    - (select count(*) from session where phase <> 'idle'))::bigint";
const REPLIES: &str = "\
select /* bench */ count(*) from task
join message on message.account_id = task.account_id and message.task_id = task.id
where message.created_at >= $1 and message.turn_id is not null and left(message.body, 6) = 'Noted.'";
const TURNS: &str = "\
select /* bench */ count(*) from session
join turn on turn.account_id = session.account_id and turn.session_id = session.id
where session.opened_at >= $1 and turn.state = 'finished'";
const DELIVERED: &str = "\
select /* bench */ count(*) from account
join notification on notification.account_id = account.id
where notification.created_at >= $1 and notification.state = 'delivered'";

fn services(stage: &Stage, work: &Work) -> anyhow::Result<Started> {
    let in_flight = work.in_flight.div_ceil(work.replicas);
    let mut started = Started::none();
    for replica in 0..work.replicas {
        for role in SERVICES {
            let (name, port) = (role.service(), free_port()?);
            let section = name.replace('-', "_").to_uppercase();
            let mut command = Command::new(program()?);
            command
                .args(["serve", name])
                .env("DATABASE_URL", &stage.database_url)
                .env("NATS_URL", stage.nats.url_of(context::user(role).name()))
                .env(ENVELOPE.0, ENVELOPE.1)
                .envs(CALLOUT)
                .env("SIGNALBOX_OPERATOR_TOKEN", OPERATOR_TOKEN)
                .env(format!("SIGNALBOX__{section}__LISTEN"), format!("127.0.0.1:{port}"))
                .env("SIGNALBOX__DELIVERY__TURNS_IN_FLIGHT_MAX", in_flight.to_string())
                .env(
                    "SIGNALBOX__DELIVERY__TURNS_IN_FLIGHT_ACCOUNT_MAX",
                    in_flight.to_string(),
                )
                .env("SIGNALBOX__PROVIDERS__DEFAULT__KIND", "openresponses")
                .env("SIGNALBOX__PROVIDERS__DEFAULT__MODEL", "bench")
                .env("SIGNALBOX__PROVIDERS__DEFAULT__URL", &stage.provider.url)
                .env("SIGNALBOX__PROVIDERS__DEFAULT__IN_FLIGHT_MAX", in_flight.to_string());
            let ready_url = format!("http://127.0.0.1:{port}{READY}");
            started.add(&stage.directory, format!("{name}-{replica}"), command, Some(ready_url))?;
        }
    }
    Ok(started)
}

fn floor_processes(stage: &Stage, work: &Work, program: Option<&Path>, parts: &[&str]) -> anyhow::Result<Started> {
    let own = std::env::current_exe().context("could not find this program's path")?;
    let mut started = Started::none();
    for part in parts {
        let mut command = Command::new(program.unwrap_or(&own));
        command
            .args(["floor", "--part", part, "--in-flight", &work.in_flight.to_string()])
            .env(floor::NATS_URL, stage.nats.url())
            .env(floor::DATABASE_URL, &stage.database_url)
            .env(floor::PROVIDER_URL, &stage.provider.url);
        started.add(&stage.directory, format!("floor-{part}"), command, None)?;
    }
    Ok(started)
}

async fn migrate(stage: &Stage) -> anyhow::Result<()> {
    let mut command = Command::new(program()?);
    command
        .arg("migrate")
        .current_dir(&stage.directory)
        .env("DATABASE_URL", &stage.database_url)
        .env("NATS_URL", stage.nats.url_of(User::Operator.name()))
        .env(ENVELOPE.0, ENVELOPE.1);
    complete("signalbox migrate", command).await
}

/// Inserts accounts with their agent and tasks, and old data.
async fn fill(observer: &PgPool, work: &Work) -> anyhow::Result<()> {
    let accounts: Vec<String> = (0..work.accounts()).map(|n| account(n * TASKS_AN_ACCOUNT)).collect();
    let tasks = i32::try_from(TASKS_AN_ACCOUNT.min(work.pairs)).context("tasks")?;
    sqlx::query("insert into account (id, name) select id, id from unnest($1::text[]) as id")
        .bind(&accounts)
        .execute(observer)
        .await
        .context("accounts")?;
    sqlx::query("insert into agent (account_id, id, slug, name, role) select id, gen_random_uuid(), $2, $2, 'Looks into things.' from account where id = any($1)")
        .bind(&accounts)
        .bind(AGENT)
        .execute(observer)
        .await
        .context("agents")?;
    sqlx::query(
        "insert into task (account_id, id, display_id, title, status)
         select account.id, 't-' || n, 't-' || n, 'Task ' || n, 'in_progress' from account, generate_series(0, $2 - 1) as n
         where account.id = any($1)",
    )
    .bind(&accounts)
    .bind(tasks)
    .execute(observer)
    .await
    .context("tasks")?;
    if work.stored > 0 {
        stored::fill(observer, work).await?;
    }
    if let Pace::Asks(people) = work.pace {
        people::fill(observer, work, people).await?;
    }
    Ok(())
}

/// The program `signalbox` in this program's folder.
fn program() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("could not find this program's path")?;
    let program = own.with_file_name("signalbox");
    if !program.is_file() {
        bail!("{} is missing: build the workspace's programs first", program.display());
    }
    Ok(program)
}

pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr().context("no free port")?.port())
}
