//! A Postgres data directory: its location, its creation, and the exclusion of other servers on it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::Instant;

use crate::Durability;
use crate::binaries;
use crate::credentials::{self, USER};
use crate::launcher::{RunAs, Signal, run_to_end, signal_send};

/// Settings of every use here; they are command-line options, so a restart may change them.
const SETTINGS: &[&str] = &[
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=", // a socket's path is limited to 107 bytes, a data directory's is not
    "jit=off",                  // costs more than it gains for statements that take a millisecond
    "timezone=UTC",
    "log_timezone=UTC",
];
/// A commit still reaches the kernel before it is acknowledged, so that a killed server loses none.
const SETTINGS_FAST: &[&str] = &[
    "fsync=off",
    "full_page_writes=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "checkpoint_timeout=1h",
    "max_wal_size=4GB",
];

/// How long an orphaned server on our data directory may take to end.
const ORPHAN_LIMIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub(crate) struct Cluster {
    /// Postgres' own data directory.
    pub(crate) directory: PathBuf,
    pub(crate) run_as: RunAs,
    bin: PathBuf,
    durability: Durability,
}

/// The data of a running server in `postmaster.pid`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Postmaster {
    pub(crate) pid: u32,
    pub(crate) port: u16,
    pub(crate) is_ready: bool,
}

impl Cluster {
    /// The cluster below `home`, an absolute path, created if missing. Ends a server that still runs on it: the caller
    /// holds the lock of the data directory, so that server can only be an orphan.
    pub(crate) async fn open(home: &Path, password: &str, durability: Durability) -> anyhow::Result<Cluster> {
        let run_as = RunAs::unprivileged().await?;
        let place = place(home, &run_as, durability).await?;
        let directory = place.join("cluster");
        end_orphan(&directory).await?;
        let bin = binaries::postgres_bin(major_of(&directory)).await?;
        let cluster = Cluster {
            directory,
            run_as,
            bin,
            durability,
        };
        if !cluster.directory.exists() {
            cluster.create(&place, password).await?;
        }
        Ok(cluster)
    }

    /// Removes the cluster below `home`, if it exists, and ends a server that runs on it.
    pub(crate) async fn clear(home: &Path, durability: Durability) -> anyhow::Result<()> {
        let run_as = RunAs::unprivileged().await?;
        let directory = place(home, &run_as, durability).await?.join("cluster");
        end_orphan(&directory).await?;
        remove_if_there(&directory)
    }

    /// Created under another name first: an incomplete cluster is never used.
    async fn create(&self, place: &Path, password: &str) -> anyhow::Result<()> {
        let unfinished = place.join("cluster.new");
        remove_if_there(&unfinished)?;
        let password_file = place.join("password");
        credentials::write_private(&password_file, password.as_bytes())?;
        self.run_as.give(&password_file)?;

        let mut initdb = self.command("initdb", place);
        initdb
            .arg("--pgdata")
            .arg(&unfinished)
            .arg("--pwfile")
            .arg(&password_file);
        initdb.args(["--username", USER, "--encoding", "UTF8", "--locale", "C.UTF-8"]);
        match self.durability {
            Durability::Durable => initdb.args(["--auth", "scram-sha-256"]),
            // SCRAM costs an unoptimised client 60 ms of hashing a connection. It protects weak passwords, and ours is
            // random.
            Durability::Fast => initdb.args(["--auth", "md5", "--no-sync"]),
        };
        let made = run_to_end(initdb, "initdb").await;
        fs::remove_file(&password_file).context("could not remove the password file")?;
        made?;

        self.create_database(&unfinished, place).await?;
        fs::rename(&unfinished, &self.directory).context("could not put the new cluster in its place")
    }

    /// Uses a server in single-user mode, which needs neither a port nor a client program.
    async fn create_database(&self, directory: &Path, place: &Path) -> anyhow::Result<()> {
        let mut command = self.command("postgres", place);
        command.arg("--single").arg("-D").arg(directory);
        command.args(self.settings()).arg("postgres");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("could not start Postgres to make the database")?;
        let mut stdin = child.stdin.take().expect("stdin was asked to be a pipe");
        stdin
            .write_all(format!("create database {USER};\n").as_bytes())
            .await
            .context("could not make the database")?;
        drop(stdin); // end of input ends the server
        let output = child.wait_with_output().await.context("could not make the database")?;
        let said = String::from_utf8_lossy(&output.stderr);
        // In this mode a failed statement does not change the exit status.
        if !output.status.success() || said.contains("ERROR:") || said.contains("FATAL:") {
            bail!(
                "could not make the database: {}",
                said.trim().lines().collect::<Vec<_>>().join(" | ")
            );
        }
        Ok(())
    }

    /// The command line of the server itself.
    pub(crate) fn server_command(&self, port: u16, connections_max: u32) -> Command {
        let mut command = self.command("postgres", &self.directory);
        command.arg("-D").arg(&self.directory).args(self.settings());
        command.args([
            "-c",
            &format!("port={port}"),
            "-c",
            &format!("max_connections={connections_max}"),
        ]);
        command
    }

    fn settings(&self) -> Vec<String> {
        let by_durability = match self.durability {
            Durability::Durable => &[], // Postgres' own defaults lose nothing
            Durability::Fast => SETTINGS_FAST,
        };
        SETTINGS
            .iter()
            .chain(by_durability)
            .flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()])
            .collect()
    }

    /// Interrupted by its parent's death, which is Postgres' fast shutdown.
    fn command(&self, program: &str, working_dir: &Path) -> Command {
        let mut command = self.run_as.command(&self.bin.join(program), "INT");
        // Its user may lack access to our working directory. The caller's environment for psql and the like must not
        // apply.
        command.current_dir(working_dir).kill_on_drop(true);
        for name in [
            "PGDATA",
            "PGPORT",
            "PGHOST",
            "PGUSER",
            "PGPASSWORD",
            "PGDATABASE",
            "PGOPTIONS",
        ] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn postmaster(&self) -> Option<Postmaster> {
        postmaster(&self.directory)
    }
}

fn remove_if_there(directory: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| format!("could not remove {}", directory.display())),
    }
}

fn major_of(directory: &Path) -> Option<u32> {
    fs::read_to_string(directory.join("PG_VERSION"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

pub(crate) fn postmaster(directory: &Path) -> Option<Postmaster> {
    parse_postmaster(&fs::read_to_string(directory.join("postmaster.pid")).ok()?)
}

/// Lines: pid, data directory, start time, port, socket directory, address, shared memory key, state.
fn parse_postmaster(content: &str) -> Option<Postmaster> {
    let lines: Vec<&str> = content.lines().map(str::trim).collect();
    let is_ready = lines.get(7) == Some(&"ready");
    Some(Postmaster {
        pid: lines.first()?.parse().ok()?,
        port: lines.get(3)?.parse().ok()?,
        is_ready,
    })
}

/// Whether this pid is a server on that directory, and not another process with a reused pid.
pub(crate) fn runs_in(pid: u32, directory: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == directory)
}

async fn end_orphan(directory: &Path) -> anyhow::Result<()> {
    let Some(pid) = postmaster(directory)
        .map(|postmaster| postmaster.pid)
        .filter(|pid| runs_in(*pid, directory))
    else {
        return Ok(());
    };
    tracing::info!(pid, "an orphaned Postgres is still ending");
    for signal in [Signal::INT, Signal::QUIT] {
        signal_send(pid, signal);
        let deadline = Instant::now() + ORPHAN_LIMIT;
        while Instant::now() < deadline {
            if !runs_in(pid, directory) {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    bail!("process {pid} still runs on {} and does not end", directory.display())
}

/// A directory that belongs to the server's user and that it can reach: `home` itself, or one elsewhere if a folder
/// above `home` is closed to that user, as `/root` is to `postgres`. `home/elsewhere` then holds its path.
async fn place(home: &Path, run_as: &RunAs, durability: Durability) -> anyhow::Result<PathBuf> {
    let record = home.join("elsewhere");
    if let Ok(recorded) = fs::read_to_string(&record) {
        let recorded = PathBuf::from(recorded.trim());
        if !recorded.is_dir() {
            bail!(
                "Postgres' data lay in {}, which is gone: remove {} to begin anew",
                recorded.display(),
                home.display()
            );
        }
        return Ok(recorded);
    }
    fs::create_dir_all(home).with_context(|| format!("could not create {}", home.display()))?;
    run_as.give(home)?;
    if is_reachable(home, run_as).await? {
        return Ok(home.to_path_buf());
    }
    let elsewhere = make_elsewhere(home, run_as, durability)?;
    if !is_reachable(&elsewhere, run_as).await? {
        bail!(
            "Postgres' user can reach neither {} nor {}: choose another data directory",
            home.display(),
            elsewhere.display()
        );
    }
    credentials::write_private(&record, elsewhere.to_string_lossy().as_bytes())?;
    tracing::info!(place = %elsewhere.display(), "Postgres' user cannot reach the data directory; its data is stored elsewhere");
    Ok(elsewhere)
}

async fn is_reachable(directory: &Path, run_as: &RunAs) -> anyhow::Result<bool> {
    let mut command = run_as.command(Path::new("/bin/sh"), "TERM");
    let status = command
        .args(["-c", "cd \"$1\" && test -w .", "sh"])
        .arg(directory)
        .current_dir("/")
        .stderr(Stdio::null())
        .status()
        .await
        .context("could not run sh to check the data directory")?;
    Ok(status.success())
}

/// Named after `home`, so that a removed and recreated data directory does not accumulate clusters.
fn make_elsewhere(home: &Path, run_as: &RunAs, durability: Durability) -> anyhow::Result<PathBuf> {
    let parent = Path::new(match durability {
        Durability::Durable => "/var/lib/signalbox", // files in /var/tmp may be cleaned away after a month
        Durability::Fast => "/var/tmp",
    });
    let name = hex::encode(&Sha256::digest(home.as_os_str().as_encoded_bytes())[..8]);
    let directory = parent.join(format!("signalbox-{name}"));
    let make = || -> io::Result<()> {
        fs::create_dir_all(parent)?;
        if fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir() && run_as.owns(&found)) {
            fs::remove_dir_all(&directory)?; // not referenced: left by a removed data directory
        }
        // Fails if another user has created anything under this name.
        fs::DirBuilder::new().mode(0o700).create(&directory)
    };
    make().with_context(|| format!("could not make {} for Postgres' data", directory.display()))?;
    run_as.give(&directory)?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_server_says_about_itself() {
        let started = "11542\n/d/cluster\n1795164345\n40193\n\n127.0.0.1\n  7341057 32769\nready   \n";
        assert_eq!(
            parse_postmaster(started),
            Some(Postmaster {
                pid: 11542,
                port: 40193,
                is_ready: true
            })
        );
        let starting = "11542\n/d/cluster\n1795164345\n40193\n\n";
        assert_eq!(
            parse_postmaster(starting),
            Some(Postmaster {
                pid: 11542,
                port: 40193,
                is_ready: false
            })
        );
        assert_eq!(parse_postmaster("11542\n/d/clu"), None);
    }
}
