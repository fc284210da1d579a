//! The servers of a run: a durable Postgres (fsync on), a NATS with its default durability, and the provider. One Postgres for the
//! whole benchmark, with a database for each run; NATS and provider are started anew for each run.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use contracts::Root;
use devstack::{Durability, NatsOptions, NatsServer, NatsUsers, PostgresOptions, PostgresServer};
use messaging::{User, callout::Issuer, users};
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{book::Seen, client::Caller, work::Work};

const START_LIMIT: Duration = Duration::from_secs(10);
/// The keys of the auth callout, by which API keys open NATS, as settings of the orchestrator.
pub(crate) const CALLOUT: [(&str, &str); 2] = [
    (
        "SIGNALBOX__ORCHESTRATOR__CALLOUT_ISSUER_SEED",
        "SAAACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAKM5I",
    ),
    (
        "SIGNALBOX__ORCHESTRATOR__CALLOUT_XKEY_SEED",
        "SXAAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAT5QQ",
    ),
];
/// `auto_explain` for every connection to a run's database.
const EXPLAINED: [&str; 6] = [
    "session_preload_libraries = 'auto_explain'",
    "auto_explain.log_min_duration = 0",
    "auto_explain.log_analyze = on",
    "auto_explain.log_buffers = on",
    "auto_explain.log_triggers = on",
    "auto_explain.log_format = text",
];

pub(crate) struct Servers {
    directory: PathBuf,
    postgres: PostgresServer,
    /// Plans of all statements go into the log.
    explains: bool,
    runs: u32,
    /// Databases that are slow to fill, kept as templates.
    filled: Vec<Work>,
}

/// The servers of one run.
pub(crate) struct Stage {
    pub(crate) directory: PathBuf,
    pub(crate) nats: NatsServer,
    pub(crate) database_url: String,
    pub(crate) postgres_pid: u32,
    /// Connection of the benchmark itself, whose statements are not counted.
    pub(crate) observer: PgPool,
    pub(crate) provider: Provider,
    /// Schema, accounts and old data are copied from an earlier run.
    pub(crate) is_filled: bool,
}

pub(crate) struct Provider {
    pub(crate) url: String,
    seen_url: String,
    caller: Caller,
    child: Child,
}

impl Servers {
    pub(crate) async fn start(directory: &Path, explains: bool) -> anyhow::Result<Servers> {
        let options = PostgresOptions {
            directory: directory.join("postgres"),
            durability: Durability::Durable,
        };
        let mut postgres = PostgresServer::start(options).await?;
        // The statement counter must be loaded when the server starts.
        let pool = connect(postgres.database_url()).await?;
        sqlx::query("alter system set shared_preload_libraries = 'pg_stat_statements'")
            .execute(&pool)
            .await
            .context("could not configure pg_stat_statements")?;
        pool.close().await;
        postgres.restart().await?;
        let servers = Servers {
            directory: directory.to_path_buf(),
            postgres,
            explains,
            runs: 0,
            filled: Vec::new(),
        };
        // The setting exists only after the library is loaded. Planning is half the cost of a small statement.
        servers
            .execute(&[
                "alter system set pg_stat_statements.track_planning = on".to_owned(),
                "select pg_reload_conf()".to_owned(),
            ])
            .await?;
        Ok(servers)
    }

    /// Servers for one run, without data.
    pub(crate) async fn stage(&mut self, work: &Work, users: bool) -> anyhow::Result<Stage> {
        self.runs += 1;
        let name = format!("run_{}", self.runs);
        let directory = self.directory.join(&name);
        std::fs::create_dir_all(&directory).context("could not create a run's folder")?;
        let is_filled = self.filled.iter().any(|filled| has_same_data(filled, work));
        self.execute(&[if is_filled {
            format!("create database {name} template {} strategy file_copy", template(work))
        } else {
            format!("create database {name}")
        }])
        .await?;
        if self.explains {
            self.execute(&EXPLAINED.map(|setting| format!("alter database {name} set {setting}")))
                .await?;
        }
        let database_url = of_database(self.postgres.database_url(), &name)?;
        let observer = connect(&database_url).await?;
        sqlx::query("create extension if not exists pg_stat_statements")
            .execute(&observer)
            .await
            .context("could not create pg_stat_statements: is Postgres' contrib package installed?")?;
        let nats = NatsServer::start(NatsOptions {
            directory: directory.join("nats"),
            durability: Durability::Fast,
            users: users.then(nats_users).transpose()?,
        });
        let (nats, provider) = tokio::try_join!(nats, Provider::start(work))?;
        Ok(Stage {
            directory,
            nats,
            database_url,
            postgres_pid: self.postgres.pid().context("Postgres is not running")?,
            observer,
            provider,
            is_filled,
        })
    }

    /// Keeps the filled database as a template for the next run with the same work.
    pub(crate) async fn keep_filled(&mut self, stage: &mut Stage, work: &Work) -> anyhow::Result<()> {
        if work.stored == 0 || stage.is_filled {
            return Ok(());
        }
        // A template may have no connections.
        stage.observer.close().await;
        let copied = format!(
            "create database {} template run_{} strategy file_copy",
            template(work),
            self.runs
        );
        self.execute(&[copied, "checkpoint".to_owned()]).await?;
        stage.observer = connect(&stage.database_url).await?;
        self.filled.push(*work);
        Ok(())
    }

    /// Drops the run's database and checkpoints, so that the next run does not pay for its dirty pages.
    pub(crate) async fn clear(&self, stage: Stage) -> anyhow::Result<()> {
        let Stage {
            mut nats,
            observer,
            mut provider,
            ..
        } = stage;
        observer.close().await;
        nats.kill().await?;
        provider.child.kill().await.context("could not kill the provider")?;
        self.execute(&[
            format!("drop database run_{} with (force)", self.runs),
            "checkpoint".to_owned(),
        ])
        .await
    }

    async fn execute(&self, statements: &[String]) -> anyhow::Result<()> {
        let pool = connect(self.postgres.database_url()).await?;
        for statement in statements {
            let executed = sqlx::query(sqlx::AssertSqlSafe(statement.clone())).execute(&pool).await;
            executed.with_context(|| format!("could not {statement}"))?;
        }
        pool.close().await;
        Ok(())
    }

    pub(crate) async fn postgres_version(&self) -> anyhow::Result<String> {
        let pool = connect(self.postgres.database_url()).await?;
        let version = sqlx::query_scalar("show server_version").fetch_one(&pool).await;
        pool.close().await;
        version.context("could not read Postgres' version")
    }

    pub(crate) async fn nats_version(&self) -> anyhow::Result<String> {
        let mut nats = NatsServer::start_temporary().await?;
        let version = crate::load::connect(nats.url()).await?.server_info().version;
        nats.stop().await?;
        Ok(version)
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.postgres.stop().await
    }
}

impl Provider {
    async fn start(work: &Work) -> anyhow::Result<Provider> {
        let answer = clap::ValueEnum::to_possible_value(&work.answer).context("an answer has a name")?;
        let program = std::env::current_exe().context("could not find this program's path")?;
        let mut child = Command::new(program)
            .args(["provider", "--answer", answer.get_name()])
            .args(["--delay-ms", &work.delay.as_millis().to_string()])
            .args(["--reply-bytes", &work.reply_bytes.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("could not start the provider")?;
        let output = child.stdout.take().context("the provider has no standard output")?;
        let first = timeout(START_LIMIT, BufReader::new(output).lines().next_line()).await;
        let Ok(Ok(Some(address))) = first else {
            bail!("the provider did not print its address")
        };
        Ok(Provider {
            url: format!("http://{address}/v1/responses"),
            seen_url: format!("http://{address}/seen"),
            caller: Caller::new(1),
            child,
        })
    }

    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the provider ended")
    }

    /// The calls so far.
    pub(crate) async fn seen(&self) -> anyhow::Result<Seen> {
        let body = self.caller.get(&self.seen_url).await?;
        serde_json::from_slice(&body).context("could not parse the provider's record")
    }
}

fn has_same_data(one: &Work, other: &Work) -> bool {
    (one.stored, one.pairs) == (other.stored, other.pairs)
}

fn template(work: &Work) -> String {
    format!("stored_{}_{}", work.stored, work.pairs)
}

/// The users of a deployment: the broker's permission checks are part of the measurement.
fn nats_users() -> anyhow::Result<NatsUsers> {
    let (issuer, xkey) = Issuer::from_seeds(CALLOUT[0].1, CALLOUT[1].1)?.public_keys();
    let keys = format!(
        "{}: \"{issuer}\"\n{}: \"{xkey}\"\n",
        users::ISSUER_VARIABLE,
        users::XKEY_VARIABLE
    );
    Ok(NatsUsers {
        config: keys + &users::accounts(&Root::default()) + &users::callout(&Root::default()),
        account: Some(users::jetstream_account(&Root::default())),
        names: User::ALL
            .map(|user| (user.name().to_owned(), users::password_variable(user)))
            .into(),
    })
}

async fn connect(database_url: &str) -> anyhow::Result<PgPool> {
    // Queries during a run must not scan whole tables.
    let options: PgConnectOptions = database_url.parse().context("invalid URL of Postgres")?;
    PgPoolOptions::new()
        .max_connections(1)
        .connect_with(options.options([("enable_seqscan", "off")]))
        .await
        .context("could not connect to Postgres")
}

fn of_database(url: &str, name: &str) -> anyhow::Result<String> {
    let (server, _) = url.rsplit_once('/').context("a URL without a database")?;
    Ok(format!("{server}/{name}"))
}
