//! The disk of the broker's store: a file system in memory that can be filled and emptied. It needs a mount namespace ([`enter`]),
//! so that no mount stays however the campaign ends; without that permission there is no such disk, and its fault hits nothing.

use std::{
    env,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};

/// Set in the process that has its own namespace.
const ENTERED: &str = "SIGNALBOX_CHAOS_MOUNTS";
const SIZE_KIB: u64 = 1024 * 1024;
/// Free space of a full disk: less than a block of the store.
const LEFT_KIB: u64 = 16;

/// Restarts this program in a mount namespace of its own, if permitted. Called first in `main`; returns in the process with the
/// namespace, or without one if it is not permitted.
pub(crate) fn enter() {
    if env::var_os(ENTERED).is_some() || !succeeds(Command::new("unshare").args(["--mount", "true"])) {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut again = Command::new("unshare");
    again.args(["--mount", "--"]).arg(program).args(env::args_os().skip(1));
    // `exec` returns only on failure; then the campaign runs without a mount namespace.
    let _ = again.env(ENTERED, "yes").exec();
}

pub(crate) struct Disk {
    path: PathBuf,
}

impl Disk {
    /// None: not allowed here.
    pub(super) fn mount(path: &Path) -> anyhow::Result<Option<Disk>> {
        if env::var_os(ENTERED).is_none() {
            return Ok(None);
        }
        std::fs::create_dir_all(path).with_context(|| format!("could not make {}", path.display()))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={SIZE_KIB}k"), "signalbox-chaos"]);
        let mounted = succeeds(mount.arg(path));
        Ok(mounted.then(|| Disk { path: path.to_owned() }))
    }

    /// Fills the disk. The broker may write between the look and the new size, which is then refused.
    pub(crate) fn fill(&self) -> anyhow::Result<()> {
        const TRIES: usize = 5;
        for _ in 1..TRIES {
            if self.resize(self.used()? + LEFT_KIB).is_ok() {
                return Ok(());
            }
        }
        self.resize(self.used()? + LEFT_KIB)
    }

    /// KiB.
    fn used(&self) -> anyhow::Result<u64> {
        let told = Command::new("df")
            .args(["-k", "--output=used"])
            .arg(&self.path)
            .output()
            .context("could not look at the broker's disk")?;
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        let used = told.lines().nth(1).and_then(|line| line.trim().parse().ok());
        used.with_context(|| format!("df says {told:?}"))
    }

    pub(crate) fn free(&self) -> anyhow::Result<()> {
        self.resize(SIZE_KIB)
    }

    fn resize(&self, kib: u64) -> anyhow::Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,size={kib}k")]).arg(&self.path);
        if !succeeds(&mut mount) {
            bail!("the broker's disk could not be given another size");
        }
        Ok(())
    }
}

impl Drop for Disk {
    /// Unmounts it, so that its directory can be removed. The namespace's end would also unmount it.
    fn drop(&mut self) {
        succeeds(Command::new("umount").arg("--lazy").arg(&self.path));
    }
}

fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
