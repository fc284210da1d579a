//! The processes of a subject: started, watched, killed, and stopped in order. The subject decides which they are.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::{client::Caller, peers::RestatePorts};

const READY_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// The path of the health page.
pub(crate) const READY: &str = "/readyz";
const POLL: Duration = Duration::from_millis(2);

pub(crate) struct Started {
    pub(crate) processes: Vec<Process>,
    /// Time from the first start until all were ready.
    pub(crate) ready_in: Duration,
    /// Of a server of Restate.
    pub(crate) restate: Option<RestatePorts>,
}

pub(crate) struct Process {
    pub(crate) name: String,
    /// Address of the health page. The floor has none.
    ready_url: Option<String>,
    log: PathBuf,
    command: Command,
    child: Child,
}

impl Started {
    pub(crate) fn none() -> Started {
        Started {
            processes: Vec::new(),
            ready_in: Duration::ZERO,
            restate: None,
        }
    }

    pub(crate) fn add(
        &mut self,
        directory: &Path,
        name: String,
        mut command: Command,
        ready_url: Option<String>,
    ) -> anyhow::Result<()> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("could not create {}", log.display()))?;
        let child = command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not start {name}"))?;
        self.processes.push(Process {
            name,
            ready_url,
            log,
            command,
            child,
        });
        Ok(())
    }

    pub(crate) fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let pids = self.processes.iter().map(|process| process.child.id());
        pids.collect::<Option<_>>().context("a process has ended")
    }

    /// Fails when a process has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        for Process { name, log, child, .. } in &mut self.processes {
            if let Some(status) = child.try_wait().context("could not read a process's exit status")? {
                bail!("{name} ended with {status}; its log is {}", log.display());
            }
        }
        Ok(())
    }

    /// Of the first replica.
    pub(crate) fn address_of(&self, service: &str) -> anyhow::Result<String> {
        let mut processes = self.processes.iter();
        let process = processes.find(|process| process.name.starts_with(service));
        let url = process.and_then(|process| process.ready_url.as_deref()?.strip_suffix(READY));
        url.map(str::to_owned).with_context(|| format!("there is no {service}"))
    }

    pub(crate) async fn until_ready(&mut self, process: usize) -> anyhow::Result<()> {
        let Some(url) = self.processes[process].ready_url.clone() else {
            return Ok(());
        };
        let caller = Caller::new(1);
        let deadline = Instant::now() + READY_LIMIT;
        while caller.get(&url).await.is_err() {
            self.check()?;
            if Instant::now() > deadline {
                bail!("{url} was not ready within {READY_LIMIT:?}");
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Kills a service with SIGKILL; gives its index.
    pub(crate) async fn kill(&mut self, service: &str) -> anyhow::Result<usize> {
        let place = self
            .processes
            .iter()
            .position(|process| process.name.starts_with(service));
        let place = place.with_context(|| format!("there is no {service}"))?;
        self.processes[place]
            .child
            .kill()
            .await
            .context("could not kill a process")?;
        Ok(place)
    }

    pub(crate) fn start_again(&mut self, place: usize) -> anyhow::Result<()> {
        let process = &mut self.processes[place];
        process.child = process.command.spawn().context("could not restart a process")?;
        Ok(())
    }

    /// Sends SIGTERM to all; gives the output of each.
    pub(crate) async fn stop(self) -> anyhow::Result<Vec<String>> {
        let pids = self.pids()?;
        let mut kill = Command::new("kill");
        kill.args(["-s", "TERM"]).args(pids.iter().map(u32::to_string));
        kill.status().await.context("could not send a signal")?;
        let mut said = Vec::new();
        for Process { name, child, log, .. } in self.processes {
            let output = tokio::time::timeout(STOP_LIMIT, child.wait_with_output()).await;
            let Ok(output) = output else {
                bail!("{name} did not end within {STOP_LIMIT:?}")
            };
            let output = output.context("could not wait for a process")?;
            if !output.status.success() {
                bail!("{name} ended with {}; its log is {}", output.status, log.display());
            }
            said.push(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Ok(said)
    }
}

/// Waits for a program that ends; its standard error is the error.
pub(crate) async fn complete(name: &str, mut command: Command) -> anyhow::Result<()> {
    let output = command
        .output()
        .await
        .with_context(|| format!("could not run {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
