//! The environment into the tree: `SIGNALBOX__SECTION__KEY`, and the names that other programs use too. Any of them may
//! name a file instead, which is how container engines hand secrets over: `SIGNALBOX__SECTION__KEY__FILE`,
//! `DATABASE_URL_FILE`.

use std::{ffi::OsString, fs};

use super::{
    SECTIONS, SettingsError,
    tree::{Node, Origin, Tree},
};

const PREFIX: &str = "SIGNALBOX__";

/// Names that are usual elsewhere. They give way to the setting's own variable, which can only be meant for us.
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

/// `SIGNALBOX_SECTION__KEY`: one underscore too few, and the setting would be left alone without a word.
fn is_misspelt(name: &str) -> bool {
    let rest = name.strip_prefix("SIGNALBOX_");
    rest.is_some_and(|rest| !rest.starts_with('_') && rest.contains("__"))
}

/// The variable whose value stands in the file that this one names. Ours take two underscores: there are settings that end
/// in `_file`.
fn of_file(name: &str) -> Option<&str> {
    match name.strip_suffix("_FILE") {
        Some(usual) if USUAL.iter().any(|(known, _)| *known == usual) => Some(usual),
        Some(own) if own.starts_with(PREFIX) => own.strip_suffix('_').filter(|own| own.len() > PREFIX.len()),
        Some(_) | None => None,
    }
}

/// Without the line break at its end, which editors and `echo` add.
fn read_file(path: &str) -> Result<String, SettingsError> {
    let text = fs::read_to_string(path).map_err(|source| SettingsError::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// The variables that concern us, as text, those that name files replaced by what is in them. Others may hold anything.
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
        let value = value.into_string().map_err(|_| SettingsError::Invalid {
            setting: name.clone(),
            origin: "environment".to_owned(),
            problem: "is not valid UTF-8".to_owned(),
        })?;
        match of_file(&name) {
            // As with every variable, an empty one counts as not set.
            Some(plain) if !value.is_empty() => ours.push((plain.to_owned(), read_file(&value)?)),
            Some(_) => {}
            None => ours.push((name, value)),
        }
    }
    match twice(&ours) {
        Some(name) => Err(SettingsError::Invalid {
            setting: name.to_owned(),
            origin: "environment".to_owned(),
            problem: "is set as a value and as a file".to_owned(),
        }),
        None => Ok(ours),
    }
}

fn twice(variables: &[(String, String)]) -> Option<&str> {
    let set = || {
        variables
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, _)| name.as_str())
    };
    set().find(|name| set().filter(|other| other == name).count() > 1)
}

/// Puts the variables over what the file has set. An empty one counts as not set: compose files pass `${NAME:-}` on.
pub(super) fn merge(tree: &mut Tree, mut variables: Vec<(String, String)>) -> Result<(), SettingsError> {
    variables.retain(|(_, value)| !value.is_empty());
    // Sorted, so that the same environment always gives the same settings and the same first error.
    variables.sort();
    for (usual, setting) in USUAL {
        if let Some((name, value)) = variables.iter().find(|(name, _)| name == usual) {
            tree.insert(setting.split('.'), Node::text(Origin::Variable(name.clone()), value))?;
        }
    }
    let known = || format!("SIGNALBOX__SECTION__KEY with section {}", SECTIONS.join(", "));
    for (name, value) in &variables {
        let Some(setting) = name.strip_prefix(PREFIX) else {
            if is_misspelt(name) {
                return Err(SettingsError::Unknown {
                    setting: name.clone(),
                    origin: "environment".to_owned(),
                    known: known(),
                });
            }
            continue;
        };
        let setting = setting.to_ascii_lowercase();
        let keys: Vec<&str> = setting.split("__").collect();
        if keys.len() < 2 || keys.contains(&"") || !SECTIONS.contains(&keys[0]) {
            return Err(SettingsError::Unknown {
                setting: keys.join("."),
                origin: format!("environment {name}"),
                known: known(),
            });
        }
        tree.insert(keys, Node::text(Origin::Variable(name.clone()), value))?;
    }
    Ok(())
}

/// How a setting is called in the environment, shortest usual name first.
pub(super) fn variable_of(setting: &str) -> String {
    match USUAL.iter().find(|(_, usual)| *usual == setting) {
        Some((name, _)) => (*name).to_owned(),
        None => format!("{PREFIX}{}", setting.replace('.', "__").to_ascii_uppercase()),
    }
}
