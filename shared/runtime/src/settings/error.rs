//! Why settings were refused. Always one line, and never a value that could be a secret.

/// A refused setting. The text is complete; only an unreadable file has a source.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("settings file {path} cannot be read")]
    File { path: String, source: std::io::Error },
    #[error("settings file {path}, line {line}: {problem}")]
    Syntax { path: String, line: usize, problem: String },
    #[error("setting {setting} ({origin}) is unknown; known are: {known}")]
    Unknown {
        setting: String,
        origin: String,
        known: String,
    },
    #[error("setting {setting} is missing: set it in signalbox.toml or as {variable} in the environment")]
    Missing { setting: String, variable: String },
    #[error("setting {setting} ({origin}): {problem}")]
    Invalid {
        setting: String,
        origin: String,
        problem: String,
    },
    #[error("setting {setting} ({origin}) is unsafe: {problem}")]
    Unsafe {
        setting: String,
        origin: String,
        problem: String,
    },
}

impl SettingsError {
    /// A setting without a default, by its dotted name.
    pub fn missing(setting: &str) -> SettingsError {
        SettingsError::Missing {
            setting: setting.to_owned(),
            variable: super::environment::variable_of(setting),
        }
    }
}
