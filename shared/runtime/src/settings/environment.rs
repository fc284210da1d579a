//! The environment as a source: `SIGNALBOX__SECTION__KEY`, and names that are common elsewhere. Each variable may name
//! a file instead, as container engines pass secrets: `SIGNALBOX__SECTION__KEY__FILE`, `DATABASE_URL_FILE`. `config`'s
//! own reader of the environment does not keep the names of variables.

use std::{collections::BTreeMap, ffi::OsString, fs};

use config::{Map, Value, ValueKind};

use super::{
    SECTIONS, SettingsError,
    source::{find, in_variable, place},
};

const PREFIX: &str = "SIGNALBOX__";

/// Names that are common elsewhere. The setting's own variable takes precedence, since it is specific to Signalbox.
const USUAL: [(&str, &str); 11] = [
    ("DATABASE_URL", "database.url"),
    ("NATS_URL", "nats.url"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "telemetry.otlp_logs_endpoint"),
    ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "telemetry.otlp_metrics_endpoint"),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "telemetry.otlp_traces_endpoint"),
    ("OTEL_LOGS_EXPORTER", "telemetry.logs_exporter"),
    ("OTEL_METRICS_EXPORTER", "telemetry.metrics_exporter"),
    ("OTEL_TRACES_EXPORTER", "telemetry.traces_exporter"),
    ("RUST_LOG", "telemetry.log"),
    ("SIGNALBOX_OPERATOR_TOKEN", "orchestrator.operator_token"),
];

/// `SIGNALBOX_SECTION__KEY`: with one underscore too few, the setting would be ignored silently.
fn is_misspelt(name: &str) -> bool {
    let rest = name.strip_prefix("SIGNALBOX_");
    rest.is_some_and(|rest| !rest.starts_with('_') && rest.contains("__"))
}

/// The variable whose value is in the file that this variable names. Signalbox's variables take two underscores: some
/// settings end in `_file`.
fn of_file(name: &str) -> Option<&str> {
    match name.strip_suffix("_FILE") {
        Some(usual) if USUAL.iter().any(|(known, _)| *known == usual) => Some(usual),
        Some(own) if own.starts_with(PREFIX) => own.strip_suffix('_').filter(|own| own.len() > PREFIX.len()),
        Some(_) | None => None,
    }
}

/// The file's content without the trailing line break, which editors and `echo` add.
fn read_file(path: &str) -> Result<String, SettingsError> {
    let text = fs::read_to_string(path).map_err(|source| SettingsError::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// The variables of Signalbox, as text, those that name files replaced by the files' contents. Other variables may hold
/// anything.
pub(super) fn variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, SettingsError> {
    let mut ours = Vec::new();
    for (name, value) in all {
        let Ok(name) = name.into_string() else { continue };
        let is_usual = name == super::FILE_VARIABLE || USUAL.iter().any(|(usual, _)| *usual == name);
        if !is_usual && of_file(&name).is_none() && !name.starts_with(PREFIX) && !is_misspelt(&name) {
            continue;
        }
        let value = value.into_string();
        let value = value.map_err(|_| invalid(&name, "is not valid UTF-8"))?;
        match of_file(&name) {
            // As with every variable, an empty one counts as not set.
            Some(plain) if !value.is_empty() => ours.push((plain.to_owned(), read_file(&value)?)),
            Some(_) => {}
            None => ours.push((name, value)),
        }
    }
    // As with every variable, an empty one counts as not set: compose files pass `${NAME:-}` on.
    ours.retain(|(_, value)| !value.is_empty());
    // The same environment always gives the same settings and the same first error.
    ours.sort();
    match ours.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(twice) => Err(invalid(&twice[0].0, "is set as a value and as a file")),
        None => Ok(ours),
    }
}

fn invalid(variable: &str, problem: &str) -> SettingsError {
    SettingsError::Invalid {
        setting: variable.escape_debug().to_string(),
        origin: "environment".to_owned(),
        problem: problem.to_owned(),
    }
}

/// The settings of these variables, by their dotted names, which `config` splits. `file`: the weaker source.
pub(super) fn read(variables: &[(String, String)], file: &Value) -> Result<Value, SettingsError> {
    let unknown = |setting: String, origin: &str| SettingsError::Unknown {
        setting,
        origin: origin.to_owned(),
        known: format!("SIGNALBOX__SECTION__KEY with section {}", SECTIONS.join(", ")),
    };
    let (mut all, mut own) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in variables {
        let value = in_variable(name, value);
        if let Some((_, setting)) = USUAL.iter().find(|(usual, _)| usual == name) {
            all.insert((*setting).to_owned(), value);
        } else if let Some(setting) = name.strip_prefix(PREFIX) {
            // `config` would read `a.b` and `a[0]` as paths, and any other text as one name.
            if !setting
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
            {
                let problem =
                    "a variable's name has letters, digits, _ and - only; signalbox.toml takes any key in quotes";
                return Err(invalid(name, problem));
            }
            let keys = setting.to_ascii_lowercase();
            let keys: Vec<&str> = keys.split("__").collect();
            if keys.len() < 2 || keys.contains(&"") || !SECTIONS.contains(&keys[0]) {
                return Err(unknown(keys.join("."), &place(Some(&value))));
            }
            if own.insert(keys.join("."), value).is_some() {
                return Err(invalid(name, "is set twice, in capitals and in small letters"));
            }
        } else if is_misspelt(name) {
            return Err(unknown(name.escape_debug().to_string(), "environment"));
        }
    }
    all.extend(own);
    // `config` would silently let the section replace the value, or the other way round.
    for (setting, value) in &all {
        for (end, _) in setting.match_indices('.') {
            let above = &setting[..end];
            let in_file = find(file, above).filter(|value| !matches!(value.kind, ValueKind::Table(_)));
            if let Some(other) = all.get(above).or(in_file) {
                return Err(SettingsError::Invalid {
                    setting: above.to_owned(),
                    origin: place(Some(other)),
                    problem: format!("is a value, but {} needs a section of that name", place(Some(value))),
                });
            }
        }
    }
    Ok(Value::from(Map::from_iter(all)))
}

/// The name of a setting in the environment, the shortest usual name first.
pub(super) fn variable_of(setting: &str) -> String {
    match USUAL.iter().find(|(_, usual)| *usual == setting) {
        Some((name, _)) => (*name).to_owned(),
        None => format!("{PREFIX}{}", setting.replace('.', "__").to_ascii_uppercase()),
    }
}
