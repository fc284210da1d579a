//! Runs a server as a child that cannot outlive this process, as another user if required, and ends it. Independent of
//! the kind of server.
//!
//! The kernel sends a child its "parent death signal" when the *thread* that started it ends, so servers are started
//! from one thread that lives as long as the process; a worker thread of a runtime may end long before.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, getuid, kill_process};
use tokio::process::{Child, Command};

use crate::binaries::on_path;

/// A larger log is renamed at the next start, replacing the previously renamed one.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// How much of a log is quoted when a server fails to start.
const LOG_LINES_QUOTED: usize = 5;
/// How long a dropped process may take to leave the process table; a killed one usually takes under a millisecond.
const DROP_WAIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The user that a program runs as.
#[derive(Clone, Debug)]
pub(crate) enum RunAs {
    CurrentUser,
    User { name: String, uid: u32, gid: u32 },
}

impl RunAs {
    /// Postgres refuses to run as root and to run as a user without a name: under root it gets its own user, else
    /// `nobody`.
    pub(crate) async fn unprivileged() -> anyhow::Result<RunAs> {
        if !getuid().is_root() {
            return Ok(RunAs::CurrentUser);
        }
        for name in ["postgres", "nobody"] {
            if let (Ok(uid), Ok(gid)) = (id(&["-u", name]).await, id(&["-g", name]).await) {
                return Ok(RunAs::User {
                    name: name.to_owned(),
                    uid,
                    gid,
                });
            }
        }
        bail!("Postgres does not run as root, and there is neither a user postgres nor nobody: add a user postgres")
    }

    /// The command line that runs a program as this user and sends it `death_signal` (`TERM`, say) when the starting
    /// thread ends.
    pub(crate) fn command(&self, program: &Path, death_signal: &str) -> Command {
        let Some(setpriv) = on_path("setpriv") else {
            // Not on Linux. The program then outlives a killed parent; a parent that ends in order still ends it.
            let mut command = Command::new(program);
            if let RunAs::User { uid, gid, .. } = self {
                command.uid(*uid).gid(*gid);
            }
            return command;
        };
        let mut command = Command::new(setpriv);
        if let RunAs::User { name, gid, .. } = self {
            command
                .arg(format!("--reuid={name}"))
                .arg(format!("--regid={gid}"))
                .arg("--init-groups");
        }
        command.arg("--pdeathsig").arg(death_signal).arg("--").arg(program);
        command
    }

    /// Whether the file belongs to this user. Called only if that is not the current user.
    pub(crate) fn owns(&self, file: &fs::Metadata) -> bool {
        match self {
            RunAs::CurrentUser => false,
            RunAs::User { uid, .. } => file.uid() == *uid,
        }
    }

    /// Makes this user the owner, unless it is the current user.
    pub(crate) fn give(&self, path: &Path) -> anyhow::Result<()> {
        match self {
            RunAs::CurrentUser => Ok(()),
            RunAs::User { name, uid, gid } => std::os::unix::fs::chown(path, Some(*uid), Some(*gid))
                .with_context(|| format!("could not give {} to {name}", path.display())),
        }
    }
}

async fn id(arguments: &[&str]) -> anyhow::Result<u32> {
    let output = Command::new("id")
        .args(arguments)
        .output()
        .await
        .context("could not run id")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    printed
        .trim()
        .parse()
        .with_context(|| format!("id {} printed {printed:?}", arguments.join(" ")))
}

/// A server that runs as a child of this process, or is stopped. Dropping it ends it.
pub(crate) struct ServerProcess {
    name: &'static str,
    log: PathBuf,
    drop_signal: DropSignal,
    /// `None` while it is stopped.
    child: Option<Child>,
}

/// The signal for a dropped server. Servers that release shared memory are asked first, for up to [`DROP_WAIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropSignal {
    Kill,
    QuitThenKill,
}

impl ServerProcess {
    /// A server that was not started yet.
    pub(crate) fn new(name: &'static str, log: PathBuf, drop_signal: DropSignal) -> ServerProcess {
        ServerProcess {
            name,
            log,
            drop_signal,
            child: None,
        }
    }

    /// Starts the command, its output appended to the log, and waits until `ready` finds it ready, given its pid.
    pub(crate) async fn start<T>(
        &mut self,
        mut command: Command,
        limit: Duration,
        ready: impl Fn(u32) -> Option<T>,
    ) -> anyhow::Result<T> {
        let output = log_open(&self.log)?;
        let errors = output.try_clone().context("could not share the log file")?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // Not reached by Ctrl-C: the caller ends the servers in order.
        command.process_group(0);
        let child = spawn_from_launcher(command).await;
        self.child = Some(child.with_context(|| format!("could not start {}", self.name))?);
        let deadline = Instant::now() + limit;
        let why = loop {
            if let Some(status) = self.exit_status()? {
                break format!("ended at its start ({status})");
            }
            let pid = self.pid().expect("a child that runs has an id");
            if let Some(found) = ready(pid) {
                tracing::debug!(name = self.name, pid, "server is ready");
                return Ok(found);
            }
            if Instant::now() > deadline {
                break format!("was not ready within {limit:?}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        };
        self.kill().await?;
        bail!("{} {why}: {}", self.name, log_tail(&self.log))
    }

    /// `None` while it is stopped.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref()?.id()
    }

    /// Its exit status, if it ended by itself.
    pub(crate) fn exit_status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    /// Asks the process to end, and kills it after the limit.
    pub(crate) async fn stop(&mut self, signal: Signal, limit: Duration) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child
            && child.try_wait()?.is_none()
            && let Some(pid) = child.id()
        {
            signal_send(pid, signal);
            if tokio::time::timeout(limit, child.wait()).await.is_err() {
                let name = self.name;
                tracing::warn!(name, pid, ?signal, ?limit, "server did not end within the limit");
            }
        }
        self.kill().await
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take()
            && child.try_wait()?.is_none()
        {
            let killed = child.kill().await;
            killed.with_context(|| format!("could not kill {}", self.name))?;
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if self.drop_signal == DropSignal::QuitThenKill
            && matches!(child.try_wait(), Ok(None))
            && let Some(pid) = child.id()
        {
            signal_send(pid, Signal::QUIT);
            if gone_within(&mut child, DROP_WAIT) {
                return;
            }
        }
        if child.start_kill().is_ok() {
            gone_within(&mut child, DROP_WAIT);
        }
    }
}

/// Waits without a runtime. The directories that a server writes to may be removed afterwards, so its end is awaited.
fn gone_within(child: &mut Child, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// For a pid that is our unreaped child, or is otherwise known to be the intended server.
pub(crate) fn signal_send(pid: u32, signal: Signal) {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Err(error) = kill_process(process.expect("a process has a positive id"), signal) {
        tracing::debug!(pid, ?signal, %error, "no process to signal");
    }
}

type Launch = Box<dyn FnOnce() + Send>;

/// The thread that starts all servers; it ends with the process.
static LAUNCHER: OnceLock<mpsc::Sender<Launch>> = OnceLock::new();

async fn spawn_from_launcher(mut command: Command) -> anyhow::Result<Child> {
    let launcher = LAUNCHER.get_or_init(|| {
        let (tx, rx) = mpsc::channel::<Launch>();
        let thread = std::thread::Builder::new().name("server-launcher".to_owned());
        thread
            .spawn(move || rx.into_iter().for_each(|launch| launch()))
            .expect("a process can have one more thread");
        tx
    });
    let (tx, rx) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    let launch = move || {
        let _guard = runtime.enter();
        // The receiver is gone only if the caller was dropped; then the child must be killed.
        if let Err(Ok(mut child)) = tx.send(command.spawn())
            && let Err(error) = child.start_kill()
        {
            tracing::debug!(%error, "the child had ended by itself");
        }
    };
    launcher.send(Box::new(launch)).expect("the launcher thread never ends");
    Ok(rx.await.context("the launcher thread panicked")??)
}

pub(crate) fn log_open(path: &Path) -> anyhow::Result<fs::File> {
    let open = || -> std::io::Result<fs::File> {
        if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
            fs::rename(path, path.with_extension("log.old"))?;
        }
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)
    };
    open().with_context(|| format!("could not open {}", path.display()))
}

/// The end of a log on one line, for an error message.
pub(crate) fn log_tail(path: &Path) -> String {
    let content = fs::read(path).unwrap_or_default();
    let content = String::from_utf8_lossy(&content);
    let mut lines: Vec<&str> = content
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(LOG_LINES_QUOTED)
        .collect();
    lines.reverse();
    if lines.is_empty() {
        format!("nothing in {}", path.display())
    } else {
        lines.join(" | ")
    }
}

/// Runs a program to its end; if it fails, returns an error with its output.
pub(crate) async fn run_to_end(mut command: Command, what: &str) -> anyhow::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .await
        .with_context(|| format!("could not run {what}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{what} failed ({}): {}",
            output.status,
            said.trim().lines().collect::<Vec<_>>().join(" | ")
        );
    }
    Ok(())
}
