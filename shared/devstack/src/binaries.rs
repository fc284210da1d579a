//! Finds nats-server and the Postgres programs, and refuses versions that would fail silently later. Installs nothing:
//! `deploy/provision/provision.sh` does.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tokio::process::Command;

/// Older servers ignore unknown stream settings (message schedules, TTLs) instead of refusing them.
const NATS_VERSION_MIN: (u32, u32) = (2, 12);
const POSTGRES_MAJOR_MIN: u32 = 15;

/// Where `make provision` installs nats-server, below the project's folder.
const TOOLS_NATS: &str = ".tools/bin/nats-server";

/// The nats-server to run: the one named by `SIGNALBOX_NATS_SERVER`, else the provisioned one, else the one on `PATH`.
pub(crate) async fn nats_server(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let (origin, candidates) = match named("SIGNALBOX_NATS_SERVER") {
        Some(named) => ("SIGNALBOX_NATS_SERVER: ", vec![named]),
        None => ("", nats_candidates(data_dir)),
    };
    let (major_min, minor_min) = NATS_VERSION_MIN;
    let mut refused = String::new();
    for candidate in candidates {
        refused = match nats_version(&candidate).await {
            Ok(version) if version >= NATS_VERSION_MIN => return Ok(candidate),
            Ok((major, minor)) => {
                let candidate = candidate.display();
                format!(
                    "; {origin}{candidate}, which is nats-server {major}.{minor}, older than {major_min}.{minor_min}"
                )
            }
            Err(error) => format!("; {origin}{error:#}"),
        };
    }
    bail!(
        "no nats-server {major_min}.{minor_min} or newer here{refused}: run `make provision` or set SIGNALBOX_NATS_SERVER"
    )
}

/// The path in a variable of the environment.
fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Existing files only, best first.
fn nats_candidates(data_dir: &Path) -> Vec<PathBuf> {
    // The executable is in the project's target folder, and Cargo tells a program its package's folder: both are below
    // the project. The working directory itself counts, its parents do not: any user could own those.
    let mut roots = vec![data_dir.to_path_buf()];
    roots.extend(env::current_dir());
    if let Ok(executable) = env::current_exe() {
        roots.extend(executable.ancestors().skip(1).take(4).map(Path::to_path_buf));
    }
    if let Some(package) = env::var_os("CARGO_MANIFEST_DIR") {
        roots.extend(Path::new(&package).ancestors().take(3).map(Path::to_path_buf));
    }
    let provisioned = roots.iter().map(|root| root.join(TOOLS_NATS));
    let beside_executable = env::current_exe()
        .ok()
        .map(|executable| executable.with_file_name("nats-server"));
    let on_path = on_path("nats-server");
    provisioned
        .chain(beside_executable)
        .chain(on_path)
        .filter(|path| path.is_file())
        .collect()
}

async fn nats_version(binary: &Path) -> anyhow::Result<(u32, u32)> {
    let printed = version_printed(binary).await?;
    parse_nats_version(&printed)
        .with_context(|| format!("{} is not nats-server: it printed {printed:?}", binary.display()))
}

/// From `nats-server: v2.15.1`.
fn parse_nats_version(printed: &str) -> Option<(u32, u32)> {
    let (major, rest) = printed.trim().strip_prefix("nats-server: v")?.split_once('.')?;
    let minor = rest.split(|character: char| !character.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The folder of the `postgres` and `initdb` to run. An existing cluster needs its own major version.
pub(crate) async fn postgres_bin(cluster_major: Option<u32>) -> anyhow::Result<PathBuf> {
    let candidates = named("SIGNALBOX_POSTGRES_BIN").map_or_else(postgres_candidates, |named| vec![named]);
    let mut usable = Vec::new();
    for candidate in candidates {
        if let Ok(major) = postgres_major(&candidate).await
            && major >= POSTGRES_MAJOR_MIN
        {
            usable.push((major, candidate));
        }
    }
    let chosen = match cluster_major {
        Some(wanted) => usable.into_iter().find(|(major, _)| *major == wanted),
        // Of equals the first, hence reversed: the last is the one of `PATH`.
        None => usable.into_iter().rev().max_by_key(|(major, _)| *major),
    };
    let wanted = cluster_major.map_or(format!("{POSTGRES_MAJOR_MIN} or newer"), |major| {
        format!("{major}, as the data")
    });
    chosen
        .map(|(_, directory)| directory)
        .with_context(|| format!("no Postgres {wanted} here: run `make provision` or set SIGNALBOX_POSTGRES_BIN"))
}

fn postgres_candidates() -> Vec<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut candidates: Vec<PathBuf> = debian.map(|version| version.path().join("bin")).collect();
    candidates.extend(on_path("postgres").and_then(|binary| Some(binary.parent()?.to_path_buf())));
    candidates
}

async fn postgres_major(directory: &Path) -> anyhow::Result<u32> {
    let printed = version_printed(&directory.join("postgres")).await?;
    parse_postgres_major(&printed).with_context(|| format!("{} holds no Postgres", directory.display()))
}

/// From `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn parse_postgres_major(printed: &str) -> Option<u32> {
    let version = printed.trim().strip_prefix("postgres (PostgreSQL) ")?;
    version
        .split(|character: char| !character.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

async fn version_printed(binary: &Path) -> anyhow::Result<String> {
    let output = Command::new(binary)
        .arg("--version")
        .output()
        .await
        .with_context(|| format!("could not run {}", binary.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_versions_that_servers_print() {
        assert_eq!(parse_nats_version("nats-server: v2.15.1\n"), Some((2, 15)));
        assert_eq!(parse_nats_version("nats-server: v2.9.10\n"), Some((2, 9)));
        assert_eq!(parse_nats_version("nats-server: v3.0-beta\n"), Some((3, 0)));
        assert_eq!(parse_nats_version("gnatsd 1"), None);
        assert_eq!(
            parse_postgres_major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(parse_postgres_major("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(parse_postgres_major("postgres 15"), None);
    }

    #[test]
    fn compares_minor_versions_as_numbers() {
        assert!((2, 9) < NATS_VERSION_MIN && (2, 12) >= NATS_VERSION_MIN && (3, 0) >= NATS_VERSION_MIN);
    }
}
