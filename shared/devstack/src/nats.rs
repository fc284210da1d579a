//! A private nats-server: its configuration, its start, and fault switches for tests. The messaging crate creates
//! streams and consumers.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::Durability;
use crate::binaries;
use crate::credentials::{self, Credentials, USER};
use crate::launcher::{DropSignal, RunAs, ServerProcess, Signal};

/// A new store takes 15 ms; a large one is read first.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(15);
const LOG: &str = "nats-server.log";
/// The account of a server without accounts.
const NO_ACCOUNT: &str = "$G";

/// A server's directory and durability.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// Holds the configuration, the log and the JetStream store. Created if missing.
    pub directory: PathBuf,
    pub durability: Durability,
    /// The users and their permissions. None: one user who may do everything.
    pub users: Option<NatsUsers>,
}

/// Users of a private server, in the server's own language: this crate does not know their permissions.
#[derive(Clone, Debug)]
pub struct NatsUsers {
    /// `accounts { … }` or `authorization { … }`, with passwords from variables.
    pub config: String,
    /// The account that holds JetStream. It takes over the store of a server that had no accounts.
    pub account: Option<String>,
    /// Each user with the variable of its password. [`NatsServer::url`] uses the last one.
    pub names: Vec<(String, String)>,
}

/// A nats-server with JetStream that is a child of this process, on a loopback port of its own.
pub struct NatsServer {
    binary: PathBuf,
    options: NatsOptions,
    password: String,
    /// Chosen by the server at its first start and kept at every later one, so that clients find it again.
    port: Option<u16>,
    url: String,
    process: ServerProcess,
    /// Last, so that the server is gone before its directory.
    _temporary: Option<TempDir>,
}

impl NatsServer {
    /// Starts a server below `options.directory`, with a new password.
    pub async fn start(options: NatsOptions) -> anyhow::Result<NatsServer> {
        let password = Credentials::generate()?.nats_password;
        NatsServer::start_with_password(options, password).await
    }

    /// A server for one test: in a temporary directory, gone with the value. Starts in some 20 ms.
    pub async fn start_temporary() -> anyhow::Result<NatsServer> {
        NatsServer::start_temporary_with(None).await
    }

    /// The same with users of different rights.
    pub async fn start_temporary_with(users: impl Into<Option<NatsUsers>>) -> anyhow::Result<NatsServer> {
        let temporary = TempDir::with_prefix("signalbox-nats-").context("could not make a temporary directory")?;
        let options = NatsOptions {
            directory: temporary.path().to_path_buf(),
            durability: Durability::Fast,
            users: users.into(),
        };
        let mut server = NatsServer::start(options).await?;
        server._temporary = Some(temporary);
        Ok(server)
    }

    pub(crate) async fn start_with_password(options: NatsOptions, password: String) -> anyhow::Result<NatsServer> {
        let binary = binaries::nats_server(&options.directory).await?;
        let log = options.directory.join(LOG);
        let mut server = NatsServer {
            binary,
            options,
            password,
            port: None,
            url: String::new(),
            process: ServerProcess::new("nats-server", log, DropSignal::Kill),
            _temporary: None,
        };
        server.launch().await?;
        Ok(server)
    }

    /// The URL for clients, with the credentials. async-nats (0.51) ignores credentials in the URL: pass them in its options.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of one of the users; of the only user if none were configured.
    pub fn url_of(&self, user: &str) -> String {
        let (user, password) = match &self.options.users {
            Some(_) => (user, self.password_of(user)),
            None => (USER, self.password.clone()),
        };
        format!("nats://{user}:{password}@127.0.0.1:{}", self.port())
    }

    /// Derived from the server's secret, so that a data directory stores one secret for any set of users.
    fn password_of(&self, user: &str) -> String {
        let digest = Sha256::digest(format!("{}\n{user}", self.password));
        // The letter keeps the server from parsing the password as a number.
        format!("p{}", hex::encode(&digest[..16]))
    }

    /// The permission violations of its users since its first start: a line each, from its log.
    pub fn violations(&self) -> anyhow::Result<Vec<String>> {
        self.lines_with(" Violation - ")
    }

    /// The lines of its log that contain these words.
    pub fn lines_with(&self, words: &str) -> anyhow::Result<Vec<String>> {
        let log = fs::read(self.options.directory.join(LOG)).context("no log of nats-server")?;
        let log = String::from_utf8_lossy(&log);
        let lines = log.lines().filter(|line| line.contains(words));
        Ok(lines.map(str::to_owned).collect())
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
    pub fn ended(&mut self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        self.process.exit_status()
    }

    /// SIGTERM, and waits. The store stays.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.stop(Signal::TERM, STOP_LIMIT).await
    }

    /// SIGKILL: what a crash looks like. The store stays.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// Stops the server if it runs and starts it on the same port and store.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.stop().await?;
        self.launch().await
    }

    /// Stops the server if it runs and removes every stream and message, as a lost disk would. Start it with `restart`.
    pub async fn wipe_store(&mut self) -> anyhow::Result<()> {
        self.stop().await?;
        // Removes its content, and not the directory, which may be a mount point.
        let entries = match fs::read_dir(self.store_dir()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.context("could not read the store")?,
        };
        for entry in entries {
            let path = entry.context("could not read the store")?.path();
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.with_context(|| format!("could not remove {}", path.display()))?;
        }
        Ok(())
    }

    fn store_dir(&self) -> PathBuf {
        self.options.directory.join("jetstream")
    }

    async fn launch(&mut self) -> anyhow::Result<()> {
        let directory = &self.options.directory;
        fs::create_dir_all(directory).with_context(|| format!("could not create {}", directory.display()))?;
        self.take_over_store()?;
        let config = directory.join("nats.conf");
        credentials::write_private(&config, self.config_text().as_bytes())?;

        let mut command = RunAs::CurrentUser.command(&self.binary, "TERM");
        command.arg("--config").arg(&config);
        let program = self.binary.file_name().expect("a program that ran has a name");
        // *This* child writes its port, once it listens, into a file that is named after its pid.
        let ports_file = |pid: u32| directory.join(format!("{}_{pid}.ports", program.to_string_lossy()));
        let listening = |pid: u32| {
            let port = port_written(&ports_file(pid))?;
            self.port.is_none_or(|wanted| wanted == port).then_some((pid, port))
        };
        let (pid, port) = self.process.start(command, START_LIMIT, listening).await?;
        // A killed server leaves its file behind; a pid may be reused.
        fs::remove_file(ports_file(pid)).context("could not remove the ports file")?;
        self.port = Some(port);
        let users = self.options.users.as_ref();
        let last = users.and_then(|users| users.names.last());
        self.url = self.url_of(last.map_or(USER, |(user, _)| user));
        Ok(())
    }

    /// A server stores data below the account's name; without accounts that is [`NO_ACCOUNT`].
    fn take_over_store(&self) -> anyhow::Result<()> {
        let Some(account) = self.options.users.as_ref().and_then(|users| users.account.as_ref()) else {
            return Ok(());
        };
        // The server adds a folder of its own to the configured one.
        let stored = self.store_dir().join("jetstream");
        let (before, after) = (stored.join(NO_ACCOUNT), stored.join(account));
        if before.exists() && !after.exists() {
            fs::rename(&before, &after)
                .with_context(|| format!("could not rename {} to {}", before.display(), after.display()))?;
        }
        Ok(())
    }

    fn config_text(&self) -> String {
        let port = self.port.map_or("-1".to_owned(), |port| port.to_string());
        let sync_interval = match self.options.durability {
            // By default a message is acknowledged up to two minutes before it is on disk.
            Durability::Durable => "sync_interval: always",
            Durability::Fast => "",
        };
        format!(
            "# Written by Signalbox at every start of its own nats-server.\n\
             server_name: signalbox\n\
             host: 127.0.0.1\n\
             port: {port} # -1: any free one\n\
             ports_file_dir: {directory}\n\
             max_payload: 1MB\n\
             # The limits only bound what streams may reserve; without them small disks refuse streams that stay small.\n\
             jetstream {{ store_dir: {store_dir}, max_memory_store: 256MB, max_file_store: 1TB, {sync_interval} }}\n\
             {authorization}\n",
            directory = quoted(&self.options.directory),
            store_dir = quoted(&self.store_dir()),
            authorization = self.authorization(),
        )
    }

    fn authorization(&self) -> String {
        let Some(users) = &self.options.users else {
            return format!(
                "authorization {{ users: [ {{ user: {USER}, password: \"{}\" }} ] }}",
                self.password
            );
        };
        let password = |(user, variable): &(String, String)| format!("{variable}: \"{}\"\n", self.password_of(user));
        users.names.iter().map(password).collect::<String>() + &users.config
    }
}

/// The configuration's grammar accepts JSON's double quotes, and they keep `$` from being a variable.
fn quoted(path: &Path) -> String {
    serde_json::to_string(&path.to_string_lossy()).expect("a string is valid JSON")
}

#[derive(Deserialize)]
struct PortsFile {
    nats: Vec<String>,
}

/// `None` while the file is missing or incomplete.
fn port_written(ports_file: &Path) -> Option<u16> {
    let ports: PortsFile = serde_json::from_slice(&fs::read(ports_file).ok()?).ok()?;
    ports.nats.first()?.rsplit(':').next()?.parse().ok()
}
