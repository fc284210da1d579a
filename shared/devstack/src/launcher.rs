//! Runs a server as a child that cannot outlive this process, as another user if required, and ends it. Independent of
//! the kind of server.
//!
//! The kernel sends a child its "parent death signal" when the *thread* that started it ends, so servers are started
//! from one thread that lives as long as the process; a worker thread of a runtime may end long before.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::process::{Child, Command};

use crate::binaries::on_path;

/// A larger log is renamed at the next start, replacing the previously renamed one.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// How much of a log is quoted when a server fails to start.
const LOG_LINES_QUOTED: usize = 5;
/// How long a dropped process may take to leave the process table; a killed one usually takes under a millisecond.
const DROP_WAIT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal {
    Int,
    Quit,
    Term,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Signal::Int => "INT",
            Signal::Quit => "QUIT",
            Signal::Term => "TERM",
        }
    }
}

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
        if id(&["-u"]).await? != 0 {
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

    /// The command line that runs a program as this user and sends it `death_signal` when the starting thread ends.
    pub(crate) fn command(&self, program: &Path, death_signal: Signal) -> Command {
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
        command
            .arg("--pdeathsig")
            .arg(death_signal.name())
            .arg("--")
            .arg(program);
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

/// A running child. Dropping it ends it.
pub(crate) struct ServerProcess {
    /// `None` once it is known to have ended.
    child: Option<Child>,
    pid: u32,
    name: &'static str,
    drop_signal: DropSignal,
}

/// The signal for a dropped server. Servers that release shared memory are asked first, for up to [`DROP_WAIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropSignal {
    Kill,
    QuitThenKill,
}

impl ServerProcess {
    /// Starts the command, its output appended to `log`.
    pub(crate) async fn start(
        name: &'static str,
        mut command: Command,
        log: &Path,
        drop_signal: DropSignal,
    ) -> anyhow::Result<ServerProcess> {
        let output = log_open(log)?;
        let errors = output.try_clone().context("could not share the log file")?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // Not reached by Ctrl-C: the caller ends the servers in order.
        command.process_group(0);
        let child = spawn_from_launcher(command)
            .await
            .with_context(|| format!("could not start {name}"))?;
        let pid = child.id().expect("a child that was not waited for has an id");
        Ok(ServerProcess {
            child: Some(child),
            pid,
            name,
            drop_signal,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Its exit status, if it has ended.
    pub(crate) fn exit_status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    /// Asks the process to end and waits; false if it is still running after the limit.
    pub(crate) async fn end(&mut self, signal: Signal, limit: Duration) -> anyhow::Result<bool> {
        let Some(child) = &mut self.child else { return Ok(true) };
        if child.try_wait()?.is_none() {
            signal_send(self.pid, signal).await?;
            if tokio::time::timeout(limit, child.wait()).await.is_err() {
                tracing::warn!(
                    name = self.name,
                    pid = self.pid,
                    ?signal,
                    ?limit,
                    "server did not end within the limit"
                );
                return Ok(false);
            }
        }
        self.child = None;
        Ok(true)
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child
                .kill()
                .await
                .with_context(|| format!("could not kill {}", self.name))?;
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if self.drop_signal == DropSignal::QuitThenKill && matches!(child.try_wait(), Ok(None)) {
            let asked = signal_command(self.pid, Signal::Quit).status();
            if asked.is_ok_and(|status| status.success()) && gone_within(&mut child, DROP_WAIT) {
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
pub(crate) async fn signal_send(pid: u32, signal: Signal) -> anyhow::Result<()> {
    let sent = Command::from(signal_command(pid, signal))
        .status()
        .await
        .context("could not run sh to send a signal")?;
    if !sent.success() {
        tracing::debug!(pid, ?signal, "no process to signal");
    }
    Ok(())
}

fn signal_command(pid: u32, signal: Signal) -> std::process::Command {
    // `kill` is built into the shell; a minimal system has no such program.
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal.name(), &pid.to_string()])
        .stderr(Stdio::null());
    command
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

fn log_open(path: &Path) -> anyhow::Result<fs::File> {
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
pub(crate) async fn run_to_end(mut command: Command, what: impl AsRef<OsStr>) -> anyhow::Result<()> {
    let what = what.as_ref().to_string_lossy().into_owned();
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
