//! What was set, before it has types: sections and keys, each value with the place it came from.

use std::{collections::BTreeMap, fmt};

use serde::de::DeserializeOwned;

use super::{SettingsError, environment, read};

/// Where a value came from, for error lines.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    File {
        path: String,
        line: usize,
    },
    Variable(String),
    Program(&'static str),
    /// Nowhere: a section that nobody wrote.
    Absent,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{path}, line {line}"),
            Self::Variable(name) => write!(f, "environment {name}"),
            Self::Program(by) => write!(f, "set by {by}"),
            Self::Absent => write!(f, "not set"),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// From the environment: the reader's type decides whether it is a number.
    Text(String),
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

impl Node {
    pub(super) fn text(origin: Origin, text: &str) -> Node {
        Node {
            origin,
            value: Value::Text(text.to_owned()),
        }
    }

    fn table(origin: Origin) -> Node {
        Node {
            origin,
            value: Value::Table(BTreeMap::new()),
        }
    }
}

/// The sections.
#[derive(Clone, Default)]
pub(super) struct Tree(pub(super) BTreeMap<String, Node>);

impl Tree {
    pub(super) fn sections(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// The value of `section.key.key`.
    pub(super) fn get(&self, setting: &str) -> Option<&Node> {
        let mut keys = setting.split('.');
        let mut node = self.0.get(keys.next()?)?;
        for key in keys {
            match &node.value {
                Value::Table(table) => node = table.get(key)?,
                Value::Text(_)
                | Value::String(_)
                | Value::Integer(_)
                | Value::Float(_)
                | Value::Boolean(_)
                | Value::List(_) => return None,
            }
        }
        Some(node)
    }

    /// Puts a value in its place, over what a weaker source has set there.
    pub(super) fn insert<'a>(
        &mut self,
        keys: impl IntoIterator<Item = &'a str>,
        node: Node,
    ) -> Result<(), SettingsError> {
        let keys: Vec<&str> = keys.into_iter().collect();
        let (last, sections) = keys.split_last().expect("a dotted name has at least one part");
        let mut table = &mut self.0;
        for (depth, key) in sections.iter().enumerate() {
            let entry = table
                .entry((*key).to_owned())
                .or_insert_with(|| Node::table(node.origin.clone()));
            let Value::Table(inner) = &mut entry.value else {
                return Err(SettingsError::Invalid {
                    setting: keys[..=depth].join("."),
                    origin: entry.origin.to_string(),
                    problem: format!("is a value, but {} needs a section of that name", node.origin),
                });
            };
            table = inner;
        }
        table.insert((*last).to_owned(), node);
        Ok(())
    }

    /// Reads one section as a type.
    pub(super) fn read<T: DeserializeOwned>(&self, section: &str) -> Result<T, SettingsError> {
        let absent = Node::table(Origin::Absent);
        let node = self.0.get(section).unwrap_or(&absent);
        read::read(node).map_err(|fault| {
            let setting = fault.setting(section);
            match fault.kind {
                read::FaultKind::Unknown { known } => SettingsError::Unknown {
                    setting,
                    origin: fault.origin.to_string(),
                    known,
                },
                read::FaultKind::Missing => SettingsError::Missing {
                    variable: environment::variable_of(&setting),
                    setting,
                },
                read::FaultKind::Invalid { problem } => SettingsError::Invalid {
                    setting,
                    origin: fault.origin.to_string(),
                    problem,
                },
            }
        })
    }
}
