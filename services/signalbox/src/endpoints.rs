//! `{data-dir}/endpoints.json`: the addresses of a running `up`, with the credentials that a local program needs. Written
//! atomically once everything is ready, readable by its owner only.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::Context;
use devstack::write_private;
use serde::{Deserialize, Serialize};

const FILE: &str = "endpoints.json";

/// The first four names are public; other fields may be added.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    pub(crate) http_url: String,
    pub(crate) tool_gateway_url: String,
    pub(crate) nats_url: String,
    pub(crate) database_url: String,
    #[serde(default)]
    pub(crate) operator_token: Option<String>,
    /// Resolver and delivery serve health pages and metrics only.
    #[serde(default)]
    pub(crate) resolver_url: Option<String>,
    #[serde(default)]
    pub(crate) delivery_url: Option<String>,
    /// `nats_url` has a publisher's credentials: it may send notifications and subscribe to events. This one may do everything.
    #[serde(default)]
    pub(crate) nats_operator_url: Option<String>,
}

impl Endpoints {
    pub(crate) fn write(&self, data_dir: &Path) -> anyhow::Result<()> {
        let content = serde_json::to_string_pretty(self).expect("texts are valid JSON") + "\n";
        write_private(&data_dir.join(FILE), content.as_bytes())
    }

    /// `None` when no `up` has been ready yet.
    pub(crate) fn read(data_dir: &Path) -> anyhow::Result<Option<Endpoints>> {
        let path = data_dir.join(FILE);
        match fs::read(&path) {
            Ok(content) => serde_json::from_slice(&content)
                .map(Some)
                .with_context(|| format!("{} is not a file of `signalbox up`", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Removes the file of an earlier run, so that a program that waits for the file does not read the old one.
    pub(crate) fn remove(data_dir: &Path) -> anyhow::Result<()> {
        let path = data_dir.join(FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn endpoints() -> Endpoints {
        Endpoints {
            http_url: "http://127.0.0.1:8080".to_owned(),
            tool_gateway_url: "http://127.0.0.1:8081".to_owned(),
            nats_url: "nats://signalbox:secret@127.0.0.1:4222".to_owned(),
            database_url: "postgres://signalbox:secret@127.0.0.1:5432/signalbox".to_owned(),
            operator_token: Some("token".to_owned()),
            resolver_url: Some("http://127.0.0.1:8082".to_owned()),
            delivery_url: None,
            nats_operator_url: Some("nats://operator:secret@127.0.0.1:4222".to_owned()),
        }
    }

    #[test]
    fn is_written_for_its_owner_only_and_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Endpoints::read(folder.path()).unwrap().is_none());
        endpoints().write(folder.path()).unwrap();
        endpoints().write(folder.path()).unwrap();
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(Endpoints::read(folder.path()).unwrap() == Some(endpoints()));
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn has_the_public_names() {
        let written = serde_json::to_value(endpoints()).unwrap();
        let names: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "database_url",
                "delivery_url",
                "http_url",
                "nats_operator_url",
                "nats_url",
                "operator_token",
                "resolver_url",
                "tool_gateway_url"
            ]
        );
    }

    #[test]
    fn an_old_one_can_be_removed_twice() {
        let folder = tempfile::tempdir().unwrap();
        endpoints().write(folder.path()).unwrap();
        Endpoints::remove(folder.path()).unwrap();
        Endpoints::remove(folder.path()).unwrap();
        assert!(Endpoints::read(folder.path()).unwrap().is_none());
    }
}
