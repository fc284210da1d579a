//! One service process: started, ended in every way, stopped and continued, and restarted after it ended by itself. Each has its
//! own proxies to NATS, Postgres and the provider, so that one process can be cut off alone.

use std::{
    fs::{self, OpenOptions},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context;
use testkit::proxy::Proxy;
use tokio::{
    process::{Child, Command},
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep, timeout},
};

use crate::plan::Process;

const SIGABRT: i32 = 6;
/// Longer than `process.stop_grace_ms` of the campaign's settings.
const STOP_LIMIT: Duration = Duration::from_secs(8);
const POLL: Duration = Duration::from_millis(5);

/// A process and its surroundings, which survive its restarts.
pub(crate) struct Service {
    pub(crate) process: Process,
    pub(crate) listen: u16,
    pub(crate) log: PathBuf,
    pub(crate) nats: Proxy,
    pub(crate) postgres: Proxy,
    pub(crate) provider: Proxy,
    program: PathBuf,
    crash_file: PathBuf,
    environment: Vec<(String, String)>,
    /// Held by the fault that acts on the process; other faults wait.
    life: Mutex<Life>,
}

#[derive(Default)]
pub(crate) struct Life {
    child: Option<Child>,
    /// Ends without a scheduled fault.
    pub(crate) surprises: Vec<String>,
}

pub(crate) struct Surroundings {
    pub(crate) nats: Proxy,
    pub(crate) postgres: Proxy,
    pub(crate) provider: Proxy,
    pub(crate) environment: Vec<(String, String)>,
}

impl Service {
    pub(crate) fn new(
        process: Process,
        directory: &Path,
        program: &Path,
        listen: u16,
        surroundings: Surroundings,
    ) -> anyhow::Result<Service> {
        let Surroundings {
            nats,
            postgres,
            provider,
            mut environment,
        } = surroundings;
        let crash_file = directory.join(format!("{}.crash", process.name()));
        let section = process.role().service().replace('-', "_").to_uppercase();
        environment.push((format!("SIGNALBOX__{section}__LISTEN"), format!("127.0.0.1:{listen}")));
        environment.push((
            runtime::crash::CRASH_FILE.to_owned(),
            crash_file.to_string_lossy().into_owned(),
        ));
        Ok(Service {
            process,
            listen,
            log: directory.join(format!("{}.log", process.name())),
            nats,
            postgres,
            provider,
            program: program.to_owned(),
            crash_file,
            environment,
            life: Mutex::default(),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.listen)
    }

    /// Waits until no other fault acts on it.
    pub(crate) async fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().await
    }

    pub(crate) fn try_life(&self) -> Option<MutexGuard<'_, Life>> {
        self.life.try_lock().ok()
    }

    /// Starts it, without waiting until it is ready.
    pub(crate) fn start(&self, life: &mut Life) -> anyhow::Result<()> {
        let open = || OpenOptions::new().append(true).create(true).open(&self.log);
        let output = open().with_context(|| format!("could not open {}", self.log.display()))?;
        // Ended by the kernel when the thread that started it ends: the runtime's threads live as long as it does.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.program)
            .args(["serve", self.process.role().service()])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("could not share a log file")?)
            .stderr(output)
            // Not Ctrl-C's business: the campaign ends what it started.
            .process_group(0)
            .kill_on_drop(true);
        let child = command
            .spawn()
            .with_context(|| format!("could not start {}", self.program.display()))?;
        life.child = Some(child);
        Ok(())
    }

    /// Starts it if it is down.
    pub(crate) fn ensure(&self, life: &mut Life) -> anyhow::Result<()> {
        if life.running() { Ok(()) } else { self.start(life) }
    }

    /// Records an end without a scheduled fault, and restarts the process as a supervisor would.
    pub(crate) fn revive(&self, life: &mut Life) -> anyhow::Result<()> {
        if life.running() {
            return Ok(());
        }
        if let Some(status) = life.child.take().and_then(|mut child| child.try_wait().ok().flatten()) {
            life.surprises
                .push(format!("{} ended with {status}", self.process.name()));
        }
        self.start(life)
    }

    /// Arms a crash point: at its next hit the process does `what`: `die` or `freeze`.
    pub(crate) fn arm(&self, point: &str, what: &str) -> anyhow::Result<()> {
        let draft = self.crash_file.with_extension("draft");
        fs::write(&draft, format!("{point} {what}")).context("could not write a crash file")?;
        fs::rename(&draft, &self.crash_file).context("could not arm a crash point")
    }

    pub(crate) fn disarm(&self) {
        // The file is removed when the point is reached.
        let _ = fs::remove_file(&self.crash_file);
    }

    /// Whether the point was reached.
    pub(crate) fn is_disarmed(&self) -> bool {
        !self.crash_file.exists()
    }

    pub(crate) fn heal(&self) {
        self.disarm();
        for proxy in [&self.nats, &self.postgres, &self.provider] {
            proxy.heal();
        }
    }
}

impl Life {
    pub(crate) fn running(&mut self) -> bool {
        matches!(self.child.as_mut().map(Child::try_wait), Some(Ok(None)))
    }

    pub(crate) fn pid(&mut self) -> Option<u32> {
        if self.running() {
            self.child.as_ref().and_then(Child::id)
        } else {
            None
        }
    }

    /// Sends SIGKILL and waits for the end. False if it was not running.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<bool> {
        let was_running = self.running();
        if let Some(mut child) = self.child.take() {
            child.start_kill().ok();
            child.wait().await.context("could not wait for a killed process")?;
        }
        Ok(was_running)
    }

    /// Sends SIGTERM and waits; after the limit it kills the process and reports an error.
    pub(crate) async fn terminate(&mut self) -> anyhow::Result<bool> {
        let Some(pid) = self.pid() else { return Ok(false) };
        signal(&[pid], "TERM").await?;
        let ended = self.ended_within(STOP_LIMIT).await?;
        if ended.is_none() {
            self.surprises
                .push(format!("process {pid} did not end within {STOP_LIMIT:?} of SIGTERM"));
            self.kill().await?;
        }
        self.child = None;
        Ok(true)
    }

    /// How it ended, if it does in time.
    pub(crate) async fn ended_within(&mut self, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        match timeout(limit, child.wait()).await {
            Ok(status) => Ok(Some(status.context("could not wait for a process")?)),
            Err(_) => Ok(None),
        }
    }
}

/// Whether it ended itself, as an armed crash point does.
pub(crate) fn aborted(status: ExitStatus) -> bool {
    status.signal() == Some(SIGABRT)
}

/// Sends a signal to our processes; ended ones are skipped.
pub(crate) async fn signal(pids: &[u32], name: &str) -> anyhow::Result<()> {
    let mut kill = Command::new("sh");
    kill.args([
        "-c",
        "name=$1; shift; for pid; do kill -s \"$name\" \"$pid\"; done",
        "sh",
        name,
    ]);
    kill.args(pids.iter().map(u32::to_string)).stderr(Stdio::null());
    kill.status()
        .await
        .with_context(|| format!("could not send SIG{name}"))?;
    Ok(())
}

/// Waits until the process is stopped, as after SIGSTOP.
pub(crate) async fn stopped_within(pid: u32, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if state_of(pid) == Some('T') {
            return true;
        }
        sleep(POLL).await;
    }
    false
}

/// Parses `/proc/{pid}/stat` after the process name in brackets.
fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// KiB of memory, and open files. None: it has ended.
pub(super) fn held(pid: u32) -> Option<(usize, usize)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let memory_kib = memory.split_whitespace().next()?.parse().ok()?;
    Some((memory_kib, fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()))
}

/// A process and its descendants.
pub(crate) fn family(parent: u32) -> Vec<u32> {
    let children = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let its_parent: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            (its_parent == parent).then_some(pid)
        });
    std::iter::once(parent).chain(children).collect()
}
