//! Settings: the file `signalbox.toml`, then the environment. A setting that is unknown, missing or unsafe stops the
//! start with one line that says which setting, where it came from, what is wrong and what is allowed.
//!
//! From weakest to strongest: the default in the code, the file, the usual names (`DATABASE_URL` …), the environment
//! `SIGNALBOX__SECTION__KEY`, and what the command sets itself ([`Settings::set`]). An empty variable counts as not
//! set. The sections that every process needs are fields here; a service reads its own with [`Settings::section`].
//!
//! Sections of services are only checked by the process that runs them; their names are checked everywhere.

mod envelope;
mod environment;
mod error;
mod file;
mod limit;
mod read;
mod safety;
mod sections;
mod tree;

use std::{ffi::OsString, fmt, path::Path};

use serde::de::DeserializeOwned;

pub use envelope::EnvelopeSettings;
pub use error::SettingsError;
pub use limit::{Count, Millis};
pub use sections::{
    DatabaseSettings, HttpSettings, LogFormat, NatsSettings, OutboxSettings, ProcessSettings, Provision,
    ReplicaSettings, Signal, SignalExporter, TelemetrySettings,
};

use tree::{Node, Origin, Tree};

/// Every section there is. One that is not listed here is refused wherever it comes from.
const SECTIONS: [&str; 13] = [
    "database",
    "nats",
    "envelope",
    "telemetry",
    "http",
    "process",
    "outbox",
    "replica",
    "resolver",
    "delivery",
    "tool_gateway",
    "orchestrator",
    "providers",
];

const FILE_DEFAULT: &str = "signalbox.toml";
const FILE_VARIABLE: &str = "SIGNALBOX_CONFIG";

/// The sections of every process, and the tree from which a service takes its own.
#[derive(Clone)]
pub struct Settings {
    pub database: DatabaseSettings,
    pub nats: NatsSettings,
    pub envelope: EnvelopeSettings,
    pub telemetry: TelemetrySettings,
    pub http: HttpSettings,
    pub process: ProcessSettings,
    pub outbox: OutboxSettings,
    pub replica: ReplicaSettings,
    tree: Tree,
}

impl Settings {
    /// Reads the file (`SIGNALBOX_CONFIG`, else `./signalbox.toml` when there is one) and the process's environment.
    pub fn load() -> Result<Settings, SettingsError> {
        let variables = environment::variables(std::env::vars_os())?;
        let chosen = variables
            .iter()
            .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty())
            .map(|(_, path)| path.clone());
        let path = chosen.as_deref().unwrap_or(FILE_DEFAULT);
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // Only the file that nobody asked for may be absent.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && chosen.is_none() => String::new(),
            Err(source) => {
                return Err(SettingsError::File {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        Settings::from_sources(Path::new(path), &text, variables)
    }

    /// The same from a text and variables that are handed in: for tests, and for processes that start others.
    pub fn load_from(
        toml: &str,
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Result<Settings, SettingsError> {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Settings::from_sources(Path::new(FILE_DEFAULT), toml, environment::variables(variables)?)
    }

    fn from_sources(path: &Path, toml: &str, variables: Vec<(String, String)>) -> Result<Settings, SettingsError> {
        let mut tree = file::read(path, toml)?;
        environment::merge(&mut tree, variables)?;
        Settings::from_tree(tree)
    }

    fn from_tree(tree: Tree) -> Result<Settings, SettingsError> {
        if let Some((name, node)) = tree.sections().find(|(name, _)| !SECTIONS.contains(name)) {
            return Err(SettingsError::Unknown {
                setting: name.to_owned(),
                origin: node.origin.to_string(),
                known: SECTIONS.join(", "),
            });
        }
        let settings = Settings {
            database: tree.read("database")?,
            nats: tree.read("nats")?,
            envelope: tree.read("envelope")?,
            telemetry: tree.read("telemetry")?,
            http: tree.read("http")?,
            process: tree.read("process")?,
            outbox: tree.read("outbox")?,
            replica: tree.read("replica")?,
            tree,
        };
        safety::check(&settings)?;
        Ok(settings)
    }

    /// A service's own section. An absent one is read as an empty one, so that defaults apply.
    ///
    /// Fields that `T` does not name are refused whether or not it says so itself. `T` must not use serde's `flatten`:
    /// it hides which fields there are, and texts of the environment could not become numbers.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, SettingsError> {
        debug_assert!(SECTIONS.contains(&name), "section {name} must be listed in SECTIONS");
        self.tree.read(name)
    }

    /// Whether `section.key` was set by the file, the environment or [`Settings::set`].
    pub fn is_set(&self, setting: &str) -> bool {
        self.tree.get(setting).is_some()
    }

    /// Sets `section.key` above every other source, written as in the environment. `by` is named in errors.
    pub fn set(&mut self, setting: &str, value: &str, by: &'static str) -> Result<(), SettingsError> {
        let mut tree = self.tree.clone();
        tree.insert(setting.split('.'), Node::text(Origin::Program(by), value))?;
        *self = Settings::from_tree(tree)?;
        Ok(())
    }
}

/// Secrets are in the tree, so it is left out.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("database", &self.database)
            .field("nats", &self.nats)
            .field("envelope", &self.envelope)
            .field("telemetry", &self.telemetry)
            .field("http", &self.http)
            .field("process", &self.process)
            .field("outbox", &self.outbox)
            .field("replica", &self.replica)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
