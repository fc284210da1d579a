//! Processes of Signalbox: started by `signalbox up`, killed without warning for `crash`, ended by a signal at the end.
//!
//! A single replica starts its own NATS and Postgres, which die with it: a crash takes everything down. Two replicas need servers
//! that outlive them. These belong to a third process, the keeper, which works in another database and below another root of NATS.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

const START_LIMIT: Duration = Duration::from_secs(120);
const END_LIMIT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const KEEPER: &str = "keeper";
/// What replicas share. Each process makes its own in its data directory, so they are copied from the first.
const SECRETS: [&str; 2] = ["operator-token", "envelope-key"];
/// The replicas' database in the keeper's Postgres, and their root in its NATS.
const OWN: &str = "conformance";

/// Settings that make cases quick, and a limit that can be reached.
const SETTINGS: [(&str, &str); 4] = [
    ("SIGNALBOX__DELIVERY__COLLECT_DEBOUNCE_MS", "300"),
    ("SIGNALBOX__DELIVERY__COLLECT_WAIT_MS_MAX", "3000"),
    ("SIGNALBOX__DELIVERY__RETRY_DELAY_MS", "1000"),
    ("SIGNALBOX__RESOLVER__QUEUE_ITEMS_MAX", "20"),
];
pub(super) const QUEUE_ITEMS_MAX: usize = 20;

#[derive(Debug, Deserialize)]
pub(super) struct Endpoints {
    pub(super) http_url: String,
    pub(super) operator_token: String,
    nats_operator_url: Option<String>,
    database_url: String,
}

struct Process {
    endpoints: Endpoints,
    child: Child,
}

pub(super) struct Replicas {
    program: PathBuf,
    agent_url: String,
    folder: TempDir,
    keeper: Option<Process>,
    /// Never empty.
    running: Vec<Process>,
}

impl Replicas {
    pub(super) async fn start(program: &Path, count: usize, agent_url: &str) -> anyhow::Result<Replicas> {
        let mut replicas = Replicas {
            program: program.to_owned(),
            agent_url: agent_url.to_owned(),
            folder: tempfile::tempdir().context("could not make a data directory")?,
            keeper: None,
            running: Vec::new(),
        };
        if count > 1 {
            let keeper = replicas.process(KEEPER, Command::new(program)).await?;
            database_create(&keeper.endpoints.database_url).await?;
            replicas.keeper = Some(keeper);
        }
        for n in 0..count {
            replicas.running.push(replicas.replica(n).await?);
        }
        Ok(replicas)
    }

    /// Of a replica that runs.
    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.running[0].endpoints
    }

    fn data_dir(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn replica(&self, n: usize) -> anyhow::Result<Process> {
        let mut command = Command::new(&self.program);
        // A path of its own, so that `crash` can name the replica that has a call.
        let agent_url = format!("{}/{n}/v1/responses", self.agent_url);
        command.envs(SETTINGS);
        command.env("SIGNALBOX__PROVIDERS__DEFAULT__URL", agent_url);
        if let Some(Process { endpoints, .. }) = &self.keeper {
            let nats_url = endpoints.nats_operator_url.as_ref();
            let database = endpoints.database_url.rsplit_once('/');
            let (server, _) = database.context("the URL of a database")?;
            command.env("SIGNALBOX__NATS__ROOT", OWN);
            command.env("NATS_URL", nats_url.context("the keeper has no NATS of its own")?);
            command.env("DATABASE_URL", format!("{server}/{OWN}"));
        }
        self.process(&n.to_string(), command).await
    }

    /// Starts `signalbox up`, and waits until it is ready.
    async fn process(&self, name: &str, mut command: Command) -> anyhow::Result<Process> {
        let data_dir = self.data_dir(name);
        fs::create_dir_all(&data_dir).context("could not make a data directory")?;
        for secret in SECRETS.iter().filter(|_| self.keeper.is_some()) {
            fs::copy(self.data_dir(KEEPER).join(secret), data_dir.join(secret)).context("could not copy a secret")?;
        }
        // An old file would be taken for the new process's.
        let path = data_dir.join("endpoints.json");
        if path.exists() {
            fs::remove_file(&path).context("could not remove endpoints.json")?;
        }
        command.args(["up", "--http", "127.0.0.1:0", "--data-dir"]);
        command.arg(&data_dir).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.kill_on_drop(true).spawn();
        let mut child = child.with_context(|| format!("could not start {}", self.program.display()))?;
        let endpoints = endpoints_await(&path, &mut child).await?;
        Ok(Process { endpoints, child })
    }

    /// Kills the replica with this path, or all of them, and starts them again.
    pub(super) async fn crash(&mut self, path: Option<&str>) -> anyhow::Result<()> {
        let is_hit = |n: &usize| path.is_none_or(|path| path.trim_matches('/') == n.to_string());
        let hit: Vec<usize> = (0..self.running.len()).filter(is_hit).collect();
        ensure!(!hit.is_empty(), "no replica has the path {path:?}");
        for n in &hit {
            let killed = self.running[*n].child.kill().await;
            killed.context("could not kill a replica")?;
        }
        for n in hit {
            self.running[n] = self.replica(n).await?;
        }
        Ok(())
    }

    /// Asks all of them to end, and waits. The keeper is the last.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        for mut process in self.running.into_iter().chain(self.keeper) {
            let id = process.child.id().context("a process has ended by itself")?;
            let asked = Command::new("kill").arg(id.to_string()).status().await;
            asked.context("could not ask a process to end")?;
            let ended = timeout(END_LIMIT, process.child.wait()).await;
            ended.context("a process did not end")??;
        }
        Ok(())
    }
}

async fn endpoints_await(path: &Path, child: &mut Child) -> anyhow::Result<Endpoints> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match fs::read(path) {
            Ok(text) => return serde_json::from_slice(&text).context("endpoints.json"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("endpoints.json"),
        }
        if let Some(status) = child.try_wait()? {
            bail!("Signalbox has ended with {status} before it was ready");
        }
        ensure!(
            Instant::now() < deadline,
            "Signalbox was not ready within {START_LIMIT:?}"
        );
        sleep(LOOK_EVERY).await;
    }
}

async fn database_create(url: &str) -> anyhow::Result<()> {
    let psql = match std::env::var_os("SIGNALBOX_POSTGRES_BIN") {
        Some(folder) => Path::new(&folder).join("psql"),
        None => PathBuf::from("psql"),
    };
    // Not the URL itself: a command line shows its password to every user of the machine.
    let parts = || {
        let (login, server) = url.split_once("://")?.1.split_once('@')?;
        let ((user, password), (address, database)) = (login.split_once(':')?, server.split_once('/')?);
        let (host, port) = address.split_once(':')?;
        Some([
            ("PGUSER", user),
            ("PGPASSWORD", password),
            ("PGHOST", host),
            ("PGPORT", port),
            ("PGDATABASE", database),
        ])
    };
    let mut command = Command::new(psql);
    command.args(["--quiet", "--command", &format!("create database {OWN}")]);
    command
        .envs(parts().context("the URL of a database")?)
        .stdin(Stdio::null());
    let status = command.status().await.context("could not start psql")?;
    ensure!(status.success(), "psql could not create a database");
    Ok(())
}
