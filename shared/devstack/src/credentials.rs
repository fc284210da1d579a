//! The passwords of the private servers, created once per data directory and stored there, readable by its owner only.
//! Without them any user of the machine could connect to a loopback port.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// The only user of either server, and the name of the database.
pub(crate) const USER: &str = "signalbox";

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Credentials {
    pub(crate) nats_password: String,
    pub(crate) postgres_password: String,
}

impl Credentials {
    pub(crate) fn generate() -> anyhow::Result<Credentials> {
        Ok(Credentials {
            nats_password: random_password()?,
            postgres_password: random_password()?,
        })
    }

    /// Loads the data directory's passwords, or creates them if it is new.
    pub(crate) fn load_or_create(data_dir: &Path) -> anyhow::Result<Credentials> {
        let path = data_dir.join("credentials.json");
        match fs::read(&path) {
            Ok(content) => {
                serde_json::from_slice(&content).with_context(|| format!("{} is not readable", path.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let credentials = Credentials::generate()?;
                let content = serde_json::to_vec_pretty(&credentials).expect("two strings are valid JSON");
                write_private(&path, &content)?;
                Ok(credentials)
            }
            Err(error) => Err(error).with_context(|| format!("could not read {}", path.display())),
        }
    }
}

/// Hexadecimal, so that it needs no quoting in a URL, a configuration file or a shell.
fn random_password() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no randomness for a password: {error}"))?;
    Ok(hex::encode(bytes))
}

/// Writes a file that only its owner can read at any time: created with its final mode under another name, then
/// renamed.
pub fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let beside = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {} // removes a file that a crash left
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().with_context(|| format!("could not write {}", path.display()))
}
