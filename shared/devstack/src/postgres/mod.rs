//! A private Postgres: start, restart, crash, stop. The storage crate creates roles, schemas and migrations.

mod cluster;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context;

pub(crate) use cluster::{Cluster, postmaster, runs_in};

use crate::Durability;
use crate::credentials::{Credentials, USER};
use crate::launcher::{DropSignal, ServerProcess, Signal};

pub(crate) const CONNECTIONS_MAX: u32 = 200;

/// Recovery after a crash replays the log since the last checkpoint.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(120);
/// A fast shutdown writes a checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const CRASH_LIMIT: Duration = Duration::from_secs(10);
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Another program may bind the free port before Postgres does.
const PORT_ATTEMPTS: u32 = 5;

/// A server's directory and durability.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// An absolute path. Holds the cluster, or a note with its path, and the log. Created if missing.
    pub directory: PathBuf,
    pub durability: Durability,
}

/// A Postgres that is a child of this process, on a loopback port of its own, with one superuser and one database, both
/// named `signalbox`.
pub struct PostgresServer {
    cluster: Cluster,
    password: String,
    /// Chosen at the first start and kept at every later one, so that pools find the server again.
    port: Option<u16>,
    database_url: String,
    process: ServerProcess,
}

impl PostgresServer {
    /// Starts a server with a new password that only this value knows. A directory can be started only once in this
    /// way.
    pub async fn start(options: PostgresOptions) -> anyhow::Result<PostgresServer> {
        let password = Credentials::generate()?.postgres_password;
        PostgresServer::start_with_password(options, password).await
    }

    pub(crate) async fn start_with_password(
        options: PostgresOptions,
        password: String,
    ) -> anyhow::Result<PostgresServer> {
        let cluster = Cluster::open(&options.directory, &password, options.durability).await?;
        let log = options.directory.join("postgres.log");
        let mut server = PostgresServer {
            cluster,
            password,
            port: None,
            database_url: String::new(),
            process: ServerProcess::new("Postgres", log, DropSignal::QuitThenKill),
        };
        server.launch().await?;
        Ok(server)
    }

    /// The database `signalbox` as its superuser, with the password.
    pub fn database_url(&self) -> &str {
        &self.database_url
    }

    /// The port on 127.0.0.1, the same for as long as this value lives.
    pub fn port(&self) -> u16 {
        self.port.expect("a server that never started is never returned")
    }

    /// `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Its exit status, if it ended by itself. For supervisors of the stack.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.process.exit_status()
    }

    /// Closes every connection, writes all data and ends.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.stop(Signal::INT, STOP_LIMIT).await
    }

    /// Ends at once without writing: the next start recovers from the log, as after a crash.
    pub async fn crash(&mut self) -> anyhow::Result<()> {
        self.process.stop(Signal::QUIT, CRASH_LIMIT).await
    }

    /// SIGKILL to the postmaster alone. Its backends notice and end a moment later; until then no other server can use
    /// the data directory, so a start may have to be retried.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// Stops the server if it runs and starts it on the same port and data.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.stop().await?;
        self.launch().await
    }

    async fn launch(&mut self) -> anyhow::Result<()> {
        let attempts = if self.port.is_some() { 1 } else { PORT_ATTEMPTS };
        for attempt in 1.. {
            let port = self.port.map_or_else(free_port, Ok)?;
            let command = self.cluster.server_command(port, CONNECTIONS_MAX);
            // `postmaster.pid` names the process and its state: *this* child accepts connections.
            let accepting = |pid: u32| {
                let found = self.cluster.postmaster()?;
                (found.pid == pid && found.is_ready).then_some(())
            };
            match self.process.start(command, START_LIMIT, accepting).await {
                Ok(()) => {
                    self.port = Some(port);
                    self.database_url = database_url(&self.password, port);
                    return Ok(());
                }
                Err(error) if attempt == attempts || !error.to_string().contains("could not bind") => {
                    return Err(error);
                }
                Err(error) => tracing::debug!(port, %error, "the port was taken meanwhile; trying another"),
            }
        }
        unreachable!("the last attempt returns")
    }
}

pub(crate) fn database_url(password: &str, port: u16) -> String {
    format!("postgres://{USER}:{password}@127.0.0.1:{port}/{USER}")
}

/// A port that was free a moment ago. Unlike nats-server, Postgres cannot choose one itself.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr().context("no free port")?.port())
}
