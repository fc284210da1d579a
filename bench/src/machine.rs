//! The machine and the build of a run.

use std::{
    fs::{self, File},
    io::{Seek, Write},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// File system of the data, and the time of a synced write of one page.
    pub(crate) filesystem: String,
    pub(crate) sync_ms: f64,
    pub(crate) postgres: String,
    pub(crate) nats: String,
    pub(crate) commit: String,
    pub(crate) build: &'static str,
}

impl Machine {
    pub(crate) fn facts(directory: &Path, postgres: String, nats: String) -> anyhow::Result<Machine> {
        Ok(Machine {
            processor: line_of("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory_gib().unwrap_or_default(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |text| text.trim().to_owned()),
            filesystem: filesystem(directory).unwrap_or_else(unknown),
            sync_ms: sync_time(directory)?.as_secs_f64() * 1e3,
            postgres,
            nats,
            commit: output("git", &["describe", "--always", "--dirty"]).unwrap_or_else(unknown),
            build: if cfg!(debug_assertions) {
                "debug: no figures to keep"
            } else {
                "release"
            },
        })
    }
}

const PAGE: [u8; 8192] = [7; 8192];
const SYNCS: u32 = 101;

/// The median of several synced writes of one page.
fn sync_time(directory: &Path) -> anyhow::Result<Duration> {
    let path = directory.join("sync");
    let mut file = File::create(&path).context("could not create a file in the data folder")?;
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        let begun = Instant::now();
        file.rewind()
            .and_then(|()| file.write_all(&PAGE))
            .context("could not write a page")?;
        file.sync_data().context("could not sync a page")?;
        times.push(begun.elapsed());
    }
    fs::remove_file(path).context("could not remove the test file")?;
    times.sort();
    Ok(times[times.len() / 2])
}

/// The file system of the longest matching mount point.
fn filesystem(directory: &Path) -> Option<String> {
    let directory = directory.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let above = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (point, kind) = (fields.next()?, fields.next()?);
        directory.starts_with(point).then_some((point.len(), kind))
    });
    Some(above.max()?.1.to_owned())
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn line_of(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_gib() -> Option<u64> {
    let kilobytes: u64 = line_of("/proc/meminfo", "MemTotal")?
        .strip_suffix(" kB")?
        .parse()
        .ok()?;
    Some(kilobytes.div_ceil(1 << 20))
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
