//! One Postgres for all processes of a test run. The runner gives every test a process of its own, and a Postgres for
//! each would cost more than the tests. The first process starts it, under a supervisor (a small shell script) that
//! outlives that process. The supervisor ends the server and removes its data when no process has used it for 300 s.
//! Every process creates databases of its own in it.
//!
//! A user of the server holds a shared file lock, which the kernel releases however the process ends. Starting and
//! ending it takes the exclusive lock. State that does not match the running server is removed together with the data.

use std::env;
use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::Durability;
use crate::credentials::{self, Credentials};
use crate::launcher::{log_open, log_tail};
use crate::postgres::{self, Cluster};

/// How long the server runs without users: long enough for a developer's next run.
const IDLE_LIMIT: Duration = Duration::from_secs(300);
/// Every test process has a pool or two, and the runner decides how many run at once.
const CONNECTIONS_MAX: u32 = 400;
/// Includes the wait for another process that is starting it.
const START_LIMIT: Duration = Duration::from_secs(120);
const SUPERVISOR: &str = include_str!("shared_postgres.sh");

/// A Postgres that other test processes share: create a database, and use no other.
pub struct SharedPostgres {
    database_url: String,
    /// The lock that keeps it running.
    _user: File,
}

#[derive(Serialize, Deserialize)]
struct State {
    pid: u32,
    port: u16,
    password: String,
    cluster: PathBuf,
}

impl SharedPostgres {
    /// The server of this workspace and user, started if it does not run. It runs for at least as long as the value
    /// lives.
    pub async fn for_tests() -> anyhow::Result<SharedPostgres> {
        let directory = directory_open()?;
        SharedPostgres::in_directory(&directory, IDLE_LIMIT).await
    }

    /// For tests of the sharing itself.
    #[doc(hidden)]
    pub async fn in_directory(directory: &Path, idle_limit: Duration) -> anyhow::Result<SharedPostgres> {
        // Held to the end of this function, so that the supervisor removes no file in use here.
        let _starting = lock(&directory.join("start"), File::lock).await?;
        let user = lock(&directory.join("users"), File::lock_shared).await?;
        user.set_times(FileTimes::new().set_modified(SystemTime::now()))
            .context("could not touch the lock file")?;
        let state = match state_running(directory) {
            Some(state) => state,
            None => start(directory, idle_limit).await?,
        };
        Ok(SharedPostgres {
            database_url: postgres::database_url(&state.password, state.port),
            _user: user,
        })
    }

    /// The database `signalbox` as the superuser. Connect to it to create a database only.
    pub fn database_url(&self) -> &str {
        &self.database_url
    }

    /// The same user in another database of this server.
    pub fn database_url_of(&self, database: &str) -> String {
        let (server, _) = self
            .database_url
            .rsplit_once('/')
            .expect("the URL was made with a database in it");
        format!("{server}/{database}")
    }
}

/// One per user and workspace: two checkouts may have different migrations, and run at the same time.
fn directory_open() -> anyhow::Result<PathBuf> {
    let workspace = hex::encode(&Sha256::digest(env!("CARGO_MANIFEST_DIR").as_bytes())[..6]);
    let user = fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid());
    let temporary = fs::canonicalize(env::temp_dir()).context("there is no temporary directory")?;
    let directory = temporary.join(format!("signalbox-tests-{user}-{workspace}"));
    match DirBuilder::new().mode(0o711).create(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("could not create {}", directory.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let found = fs::symlink_metadata(&directory).with_context(|| format!("could not open {}", directory.display()))?;
    if !found.is_dir() || found.uid() != user {
        bail!("{} belongs to another user", directory.display());
    }
    Ok(directory)
}

/// Waits for a lock of the whole file, outside of the runtime's threads.
async fn lock(path: &Path, acquire: fn(&File) -> std::io::Result<()>) -> anyhow::Result<File> {
    let options = OpenOptions::new().append(true).create(true).mode(0o600).to_owned();
    let file = options
        .open(path)
        .with_context(|| format!("could not open {}", path.display()))?;
    let waiting = tokio::task::spawn_blocking(move || acquire(&file).map(|()| file));
    let locked = tokio::time::timeout(START_LIMIT, waiting).await;
    locked
        .with_context(|| format!("{} stayed locked for {START_LIMIT:?}", path.display()))?
        .context("waiting for a lock panicked")?
        .with_context(|| format!("could not lock {}", path.display()))
}

/// The stored state, if it still describes a server that is ready.
fn state_running(directory: &Path) -> Option<State> {
    let state: State = serde_json::from_slice(&fs::read(directory.join("state.json")).ok()?).ok()?;
    let found = postgres::postmaster(&state.cluster)?;
    let fits = found.pid == state.pid && found.port == state.port && found.is_ready;
    (fits && postgres::runs_in(state.pid, &state.cluster)).then_some(state)
}

/// The caller holds the start lock.
async fn start(directory: &Path, idle_limit: Duration) -> anyhow::Result<State> {
    let password = Credentials::generate()?.postgres_password;
    let home = directory.join("postgres");
    // Remains of a server that crashed.
    Cluster::clear(&home, Durability::Fast).await?;
    let cluster = Cluster::open(&home, &password, Durability::Fast).await?;
    let port = postgres::free_port()?;
    supervise(directory, idle_limit, &cluster, port)?;

    let log = directory.join("postgres.log");
    let deadline = Instant::now() + START_LIMIT;
    loop {
        if let Some(found) = cluster
            .postmaster()
            .filter(|found| found.port == port && found.is_ready)
        {
            let state = State {
                pid: found.pid,
                port,
                password,
                cluster: cluster.directory,
            };
            let content = serde_json::to_vec(&state).expect("numbers and strings are valid JSON");
            credentials::write_private(&directory.join("state.json"), &content)?;
            return Ok(state);
        }
        if Instant::now() > deadline {
            bail!(
                "the tests' Postgres was not ready within {START_LIMIT:?}: {}",
                log_tail(&log)
            );
        }
        tokio::time::sleep(postgres::POLL_INTERVAL).await;
    }
}

/// Starts the supervisor in a session of its own, so that it survives this process and its group.
fn supervise(directory: &Path, idle_limit: Duration, cluster: &Cluster, port: u16) -> anyhow::Result<()> {
    let script = directory.join("supervisor.sh");
    credentials::write_private(&script, SUPERVISOR.as_bytes())?;
    let output = log_open(&directory.join("postgres.log"))?;
    let errors = output.try_clone().context("could not share the log file")?;

    let server = cluster.server_command(port, CONNECTIONS_MAX);
    let server = server.as_std();
    let mut supervisor = std::process::Command::new("setsid");
    supervisor.arg("--fork").arg("sh").arg(&script);
    supervisor
        .arg(directory)
        .arg(idle_limit.as_secs().to_string())
        .arg(&cluster.directory);
    supervisor.arg(server.get_program()).args(server.get_args());
    for (name, _) in server.get_envs().filter(|(_, value)| value.is_none()) {
        supervisor.env_remove(name);
    }
    // No file of this process may stay open in it: a test runner waits until a test's output is closed.
    supervisor
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors);
    let started = supervisor.status().context("could not run setsid")?;
    if !started.success() {
        bail!("the supervisor of the tests' Postgres did not start: {started}");
    }
    Ok(())
}
