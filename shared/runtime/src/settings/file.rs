//! `signalbox.toml` as a source, each value with its line: `config`'s own file reader does not keep lines.

use std::path::Path;

use config::{Map, Value, ValueKind};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{SECTIONS, SettingsError, source};

pub(super) fn read(path: &Path, text: &str) -> Result<Value, SettingsError> {
    let file = File {
        path: path.display().to_string(),
        text,
    };
    let root = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        file.refused(offset, error.message().replace('\n', " "))
    })?;
    let sections = Value::from(file.table(root.get_ref())?);
    let mut names = source::sorted(&sections).into_iter();
    match names.find(|(name, _)| !SECTIONS.contains(name)) {
        Some((name, value)) => Err(SettingsError::Unknown {
            setting: name.to_owned(),
            origin: source::place(Some(value)),
            known: SECTIONS.join(", "),
        }),
        None => Ok(sections),
    }
}

struct File<'a> {
    path: String,
    text: &'a str,
}

impl File<'_> {
    fn line(&self, offset: usize) -> usize {
        let read = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + read.iter().filter(|&&byte| byte == b'\n').count()
    }

    fn refused(&self, offset: usize, problem: impl Into<String>) -> SettingsError {
        SettingsError::Syntax {
            path: self.path.clone(),
            line: self.line(offset),
            problem: problem.into(),
        }
    }

    fn table(&self, table: &DeTable<'_>) -> Result<Map<String, Value>, SettingsError> {
        let entry = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            // Names appear in error lines, which are one line each.
            if key.get_ref().contains(char::is_control) {
                return Err(self.refused(key.span().start, "a name holds a control character"));
            }
            Ok((key.get_ref().to_string(), self.value(value)?))
        };
        table.iter().map(entry).collect()
    }

    fn value(&self, value: &Spanned<DeValue<'_>>) -> Result<Value, SettingsError> {
        let at = value.span().start;
        let kind = match value.get_ref() {
            DeValue::String(text) => ValueKind::String(text.to_string()),
            DeValue::Integer(integer) => ValueKind::I128(
                i128::from_str_radix(integer.as_str(), integer.radix())
                    .map_err(|_| self.refused(at, "the number is too large"))?,
            ),
            DeValue::Float(float) => ValueKind::Float(
                float
                    .as_str()
                    .parse()
                    .map_err(|_| self.refused(at, "the number cannot be read"))?,
            ),
            DeValue::Boolean(boolean) => ValueKind::Boolean(*boolean),
            DeValue::Datetime(_) => return Err(self.refused(at, "no setting is a date: put it in quotes")),
            DeValue::Array(items) => {
                ValueKind::Array(items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => ValueKind::Table(self.table(table)?),
        };
        Ok(source::in_file(&self.path, self.line(at), kind))
    }
}
