//! Helpers for tests of processes and folders.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// A folder that Postgres' user, which is not root, can pass through.
pub(crate) fn open_folder() -> TempDir {
    let folder = TempDir::with_prefix("signalbox-it-").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    folder
}

/// Whether a process runs; a zombie does not.
pub(crate) fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
}

pub(crate) fn signal(pid: u32, name: &str) {
    let sent = std::process::Command::new("sh")
        .args(["-c", &format!("kill -s {name} {pid}")])
        .status()
        .unwrap();
    assert!(sent.success());
}

pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
