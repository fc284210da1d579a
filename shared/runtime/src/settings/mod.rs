//! Settings: the file `signalbox.toml`, then the environment. A setting that is unknown, missing or unsafe stops the
//! start with one line: the setting, its origin, the error and the allowed values.
//!
//! From weakest to strongest: the default in the code, the file, the usual names (`DATABASE_URL` …), the environment
//! `SIGNALBOX__SECTION__KEY`, and the command's own values ([`Settings::set`]). An empty variable counts as not set.
//! The crate `config` merges the sources; its conversions are not used, since they are silent (3.7 is 4, `yes` is
//! true): `read.rs` fills the types. The sections that every process needs are fields here; a service reads its own
//! with [`Settings::section`].
//!
//! A service's section is checked only by the process that runs it; the names of sections are checked everywhere.

mod envelope;
mod environment;
mod error;
mod file;
mod models;
mod read;
mod safety;
mod section;
mod sections;
mod source;

use std::{ffi::OsString, path::Path};

use config::{Config, ConfigBuilder, builder::DefaultState};
use serde::de::DeserializeOwned;

pub use domain::{ArtifactBytes, Bytes, Count, CountOrNone, Days, Depth, Hours, LongMillis, Millis, Seconds};
pub use envelope::EnvelopeSettings;
pub use error::SettingsError;
pub use models::{ModelSettings, Models};
pub use read::address;
pub use sections::{
    DatabaseSettings, HttpSettings, LogFormat, NatsSettings, OutboxSettings, ProcessSettings, Provision,
    ReplicaSettings, Signal, SignalExporter, TelemetrySettings,
};

use source::Layer;

/// All sections. Any other is refused, whatever its source.
const SECTIONS: [&str; 17] = [
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
    "sign_in",
    "email",
    "outbound",
    "providers",
    "models",
];

const FILE_DEFAULT: &str = "signalbox.toml";
const FILE_VARIABLE: &str = "SIGNALBOX_CONFIG";

/// The sections of every process, and the merged settings, from which a service reads its own section.
#[derive(Clone, derive_more::Debug)]
pub struct Settings {
    pub database: DatabaseSettings,
    pub nats: NatsSettings,
    pub envelope: EnvelopeSettings,
    pub telemetry: TelemetrySettings,
    pub http: HttpSettings,
    pub process: ProcessSettings,
    pub outbox: OutboxSettings,
    pub replica: ReplicaSettings,
    /// Holds secrets.
    #[debug(skip)]
    config: Config,
}

impl Settings {
    /// Reads the file (`SIGNALBOX_CONFIG`, else `./signalbox.toml` if it exists) and the process's environment.
    pub fn load() -> Result<Settings, SettingsError> {
        let variables = environment::variables(std::env::vars_os())?;
        let chosen = variables
            .iter()
            .find(|(name, value)| name == FILE_VARIABLE && !value.is_empty())
            .map(|(_, path)| path.clone());
        let path = chosen.as_deref().unwrap_or(FILE_DEFAULT);
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            // Only the default file may be absent.
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

    /// The same from given text and variables: for tests, and for processes that start others.
    pub fn load_from(
        toml: &str,
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Result<Settings, SettingsError> {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        Settings::from_sources(Path::new(FILE_DEFAULT), toml, environment::variables(variables)?)
    }

    fn from_sources(path: &Path, toml: &str, variables: Vec<(String, String)>) -> Result<Settings, SettingsError> {
        let file = file::read(path, toml)?;
        let environment = environment::read(&variables, &file)?;
        let layers = Config::builder().add_source(Layer(file));
        Settings::build(layers.add_source(Layer(environment)))
    }

    fn build(layers: ConfigBuilder<DefaultState>) -> Result<Settings, SettingsError> {
        let config = layers.build().expect("layers are read before");
        let settings = Settings {
            database: read::section(&config, "database")?,
            nats: read::section(&config, "nats")?,
            envelope: read::section(&config, "envelope")?,
            telemetry: read::section(&config, "telemetry")?,
            http: read::section(&config, "http")?,
            process: read::section(&config, "process")?,
            outbox: read::section(&config, "outbox")?,
            replica: read::section(&config, "replica")?,
            config,
        };
        safety::check(&settings).map_err(|found| SettingsError::Unsafe {
            origin: source::place(source::find(&settings.config.cache, &found.setting)),
            setting: found.setting,
            problem: found.problem,
        })?;
        Ok(settings)
    }

    /// Reads a service's own section. An absent section is read as an empty one, so that defaults apply.
    ///
    /// Fields that `T` does not name are refused, whatever `T` says. `T` must not use serde's `flatten`: it hides the
    /// field names, and texts of the environment could not become numbers.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, SettingsError> {
        debug_assert!(SECTIONS.contains(&name), "section {name} must be listed in SECTIONS");
        read::section(&self.config, name)
    }

    /// Reads `section.key` of another service, for a limit that two services keep. None: no source sets it.
    pub fn value<T: DeserializeOwned>(&self, setting: &str) -> Result<Option<T>, SettingsError> {
        read::value(&self.config, setting)
    }

    /// Whether `section.key` was set by the file, the environment or [`Settings::set`].
    pub fn is_set(&self, setting: &str) -> bool {
        source::find(&self.config.cache, setting).is_some()
    }

    /// Sets `section.key` above every other source, written as in the environment. `by` is named in errors.
    pub fn set(&mut self, setting: &str, value: &str, by: &'static str) -> Result<(), SettingsError> {
        let layers = Config::builder().add_source(self.config.clone());
        let layers = layers.set_override(setting, source::set_by(by, value));
        *self = Settings::build(layers.expect("a program names a section and its keys"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
