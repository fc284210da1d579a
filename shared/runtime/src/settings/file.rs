//! `signalbox.toml` into the tree, each value with its line.

use std::{collections::BTreeMap, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    SettingsError,
    tree::{Node, Origin, Tree, Value},
};

pub(super) fn read(path: &Path, text: &str) -> Result<Tree, SettingsError> {
    let file = File {
        path: path.display().to_string(),
        text,
    };
    let root = DeTable::parse(text).map_err(|error| SettingsError::Syntax {
        line: file.line(error.span().map_or(0, |span| span.start)),
        path: file.path.clone(),
        problem: error.message().replace('\n', " "),
    })?;
    Ok(Tree(file.table(root.get_ref())?))
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

    fn table(&self, table: &DeTable<'_>) -> Result<BTreeMap<String, Node>, SettingsError> {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| -> Result<(String, Node), SettingsError> {
            let line = self.line(key.span().start);
            let key: &std::borrow::Cow<'_, str> = key.get_ref();
            // Names stand in error lines, which are one line each.
            if key.contains(char::is_control) {
                return Err(SettingsError::Syntax {
                    path: self.path.clone(),
                    line,
                    problem: "a name holds a control character".to_owned(),
                });
            }
            Ok((key.to_string(), self.node(value)?))
        };
        table.iter().map(entry).collect()
    }

    fn node(&self, value: &Spanned<DeValue<'_>>) -> Result<Node, SettingsError> {
        let line = self.line(value.span().start);
        let refused = |problem: &str| SettingsError::Syntax {
            path: self.path.clone(),
            line,
            problem: problem.to_owned(),
        };
        let value = match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(integer) => Value::Integer(
                i64::from_str_radix(integer.as_str(), integer.radix())
                    .map_err(|_| refused("the number is too large"))?,
            ),
            DeValue::Float(float) => Value::Float(
                float
                    .as_str()
                    .parse()
                    .map_err(|_| refused("the number cannot be read"))?,
            ),
            DeValue::Boolean(boolean) => Value::Boolean(*boolean),
            DeValue::Datetime(_) => return Err(refused("no setting is a date: put it in quotes")),
            DeValue::Array(items) => Value::List(items.iter().map(|item| self.node(item)).collect::<Result<_, _>>()?),
            DeValue::Table(table) => Value::Table(self.table(table)?),
        };
        Ok(Node {
            origin: Origin::File {
                path: self.path.clone(),
                line,
            },
            value,
        })
    }
}
