//! The environment into the tree: `SIGNALBOX__SECTION__KEY`, and the names that other programs use too.

use std::ffi::OsString;

use super::{
    SECTIONS, SettingsError,
    tree::{Node, Origin, Tree},
};

const PREFIX: &str = "SIGNALBOX__";

/// Names that are usual elsewhere. They give way to the setting's own variable, which can only be meant for us.
const USUAL: [(&str, &str); 5] = [
    ("DATABASE_URL", "database.url"),
    ("NATS_URL", "nats.url"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    ("RUST_LOG", "telemetry.log"),
    ("SIGNALBOX_OPERATOR_TOKEN", "orchestrator.operator_token"),
];

/// `SIGNALBOX_SECTION__KEY`: one underscore too few, and the setting would be left alone without a word.
fn is_misspelt(name: &str) -> bool {
    let rest = name.strip_prefix("SIGNALBOX_");
    rest.is_some_and(|rest| !rest.starts_with('_') && rest.contains("__"))
}

/// The variables that concern us, as text. Others may hold anything.
pub(super) fn variables(
    all: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, SettingsError> {
    let mut ours = Vec::new();
    for (name, value) in all {
        let Ok(name) = name.into_string() else { continue };
        let is_usual = name == super::FILE_VARIABLE || USUAL.iter().any(|(usual, _)| *usual == name);
        if !is_usual && !name.starts_with(PREFIX) && !is_misspelt(&name) {
            continue;
        }
        let value = value.into_string().map_err(|_| SettingsError::Invalid {
            setting: name.clone(),
            origin: "environment".to_owned(),
            problem: "is not valid UTF-8".to_owned(),
        })?;
        ours.push((name, value));
    }
    Ok(ours)
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
