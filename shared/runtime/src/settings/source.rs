//! One source of settings as `config` takes it, with the origin of each value. `config` keeps an origin as a text; only
//! this file writes and parses it.

use config::{ConfigError, Map, Source, Value, ValueKind};

/// Names with their values. The values of a stronger source replace those of a weaker one.
/// The values hold secrets.
#[derive(Clone, derive_more::Debug)]
pub(super) struct Layer(#[debug(skip)] pub(super) Value);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }
    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        self.0.clone().into_table()
    }
}

const LINE: &str = ", line ";

pub(super) fn in_file(path: &str, line: usize, kind: ValueKind) -> Value {
    Value::new(Some(&format!("{path}{LINE}{line}")), kind)
}

pub(super) fn in_variable(name: &str, text: &str) -> Value {
    Value::new(Some(&format!("environment {name}")), text)
}

pub(super) fn set_by(program: &str, text: &str) -> Value {
    Value::new(Some(&format!("set by {program}")), text)
}

/// Whether a text may stand for a number, a boolean or a list: variables and programs have nothing but texts. No
/// variable's name that becomes a setting holds [`LINE`] (`environment.rs`).
pub(super) fn is_untyped(value: &Value) -> bool {
    !value.origin().unwrap_or_default().contains(LINE)
}

/// The origin of a value, for error lines. A section that `config` made for a dotted name has the origin of its first
/// key.
pub(super) fn place(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "not set".to_owned();
    };
    match value.origin() {
        Some(origin) => origin.to_owned(),
        None => place(sorted(value).first().map(|(_, first)| *first)),
    }
}

/// The keys of a section in a stable order. Empty if there is no section.
pub(super) fn sorted(value: &Value) -> Vec<(&str, &Value)> {
    let ValueKind::Table(table) = &value.kind else {
        return Vec::new();
    };
    let mut keys: Vec<_> = table.iter().map(|(key, value)| (key.as_str(), value)).collect();
    keys.sort_unstable_by_key(|(key, _)| *key);
    keys
}

/// The value of `section.key.key`.
pub(super) fn find<'a>(sections: &'a Value, setting: &str) -> Option<&'a Value> {
    setting.split('.').try_fold(sections, child)
}

/// The value of one key of a section.
pub(super) fn child<'a>(section: &'a Value, key: &str) -> Option<&'a Value> {
    match &section.kind {
        ValueKind::Table(keys) => keys.get(key),
        _ => None,
    }
}
