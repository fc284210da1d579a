//! A node of the tree into a type, through serde, strictly: no number is rounded, no text becomes a boolean unless it
//! came from the environment, and fields that the type does not have are refused.

use std::fmt;

use serde::{
    Deserializer,
    de::{
        self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::{StrDeserializer, StringDeserializer},
    },
};

use super::tree::{Node, Origin, Value};

pub(super) fn read<T: DeserializeOwned>(node: &Node) -> Result<T, Fault> {
    T::deserialize(Reader(node)).map_err(|fault| fault.at(node))
}

/// What is wrong, with the path to it collected on the way out.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// Innermost key first.
    keys: Vec<String>,
    pub(super) origin: Origin,
}

#[derive(Debug)]
pub(super) enum FaultKind {
    Unknown { known: String },
    Missing,
    Invalid { problem: String },
}

impl Fault {
    fn new(kind: FaultKind) -> Fault {
        Fault {
            kind,
            keys: Vec::new(),
            origin: Origin::Absent,
        }
    }

    fn expected(what: &str, found: &Node) -> Fault {
        Fault::new(FaultKind::Invalid {
            problem: format!("expected {what}, found {}", Found(&found.value)),
        })
        .at(found)
    }

    /// Where a text or a section belongs a secret may belong, and what stands there instead may be one without its
    /// quotes, or in the wrong line: it is not shown.
    fn expected_other(what: &str, found: &Node) -> Fault {
        let kind = match &found.value {
            Value::Text(_) | Value::String(_) => "a text",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Boolean(_) => "true or false",
            Value::List(_) => "a list",
            Value::Table(_) => "a section",
        };
        Fault::new(FaultKind::Invalid {
            problem: format!("expected {what}, found {kind}"),
        })
        .at(found)
    }

    /// Sets the place, unless a place further in is known already.
    fn at(mut self, node: &Node) -> Fault {
        if matches!(self.origin, Origin::Absent) {
            self.origin = node.origin.clone();
        }
        self
    }

    fn below(mut self, key: &str) -> Fault {
        self.keys.push(key.to_owned());
        self
    }

    pub(super) fn setting(&self, section: &str) -> String {
        let keys = self.keys.iter().rev().map(String::as_str);
        std::iter::once(section).chain(keys).collect::<Vec<_>>().join(".")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Fault {
        Fault::new(FaultKind::Invalid {
            problem: message.to_string(),
        })
    }
    fn missing_field(field: &'static str) -> Fault {
        Fault::new(FaultKind::Missing).below(field)
    }
}

/// A found value for an error line. A long text or a URL may hold a secret and is only described.
struct Found<'a>(&'a Value);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Text(text) | Value::String(text) if text.len() <= 24 && !text.contains("://") => {
                write!(f, "{text:?}")
            }
            Value::Text(text) | Value::String(text) => write!(f, "a text of {} bytes", text.len()),
            Value::Integer(integer) => write!(f, "{integer}"),
            Value::Float(float) => write!(f, "{float}"),
            Value::Boolean(boolean) => write!(f, "{boolean}"),
            Value::List(_) => f.write_str("a list"),
            Value::Table(_) => f.write_str("a section"),
        }
    }
}

struct Reader<'a>(&'a Node);

impl Reader<'_> {
    fn whole_number(&self, min: i128, max: i128) -> Result<i64, Fault> {
        let integer = match &self.0.value {
            Value::Integer(integer) => Some(*integer),
            Value::Text(text) => text.trim().parse().ok(),
            Value::String(_) | Value::Float(_) | Value::Boolean(_) | Value::List(_) | Value::Table(_) => None,
        };
        integer
            .filter(|integer| (min..=max).contains(&i128::from(*integer)))
            .ok_or_else(|| {
                let bound = if max == i128::from(i64::MAX) {
                    format!("at least {min}")
                } else {
                    format!("from {min} to {max}")
                };
                Fault::expected(&format!("a whole number, {bound}"), self.0)
            })
    }

    fn text(&self) -> Result<&str, Fault> {
        match &self.0.value {
            Value::Text(text) | Value::String(text) => Ok(text),
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::List(_) | Value::Table(_) => {
                Err(Fault::expected_other("a text in quotes", self.0))
            }
        }
    }
}

macro_rules! whole_numbers {
    ($($method:ident $type:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            // What Postgres and TOML hold ends at i64.
            let max = i128::from($type::MAX).min(i128::from(i64::MAX));
            visitor.visit_i64(self.whole_number(i128::from($type::MIN), max)?)
        })*
    };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.0.value {
            Value::Text(text) | Value::String(text) => visitor.visit_str(text),
            Value::Integer(integer) => visitor.visit_i64(*integer),
            Value::Float(float) => visitor.visit_f64(*float),
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Table(_) => self.deserialize_map(visitor),
        }
    }

    whole_numbers! {
        deserialize_i8 i8 deserialize_i16 i16 deserialize_i32 i32 deserialize_i64 i64
        deserialize_u8 u8 deserialize_u16 u16 deserialize_u32 u32 deserialize_u64 u64
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.0.value {
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
            Value::Text(text) if text == "true" => visitor.visit_bool(true),
            Value::Text(text) if text == "false" => visitor.visit_bool(false),
            Value::Text(_)
            | Value::String(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::List(_)
            | Value::Table(_) => Err(Fault::expected("true or false", self.0)),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let float = match &self.0.value {
            Value::Float(float) => Some(*float),
            #[expect(clippy::cast_precision_loss, reason = "a ratio or a factor, written without a point")]
            Value::Integer(integer) => Some(*integer as f64),
            Value::Text(text) => text.trim().parse().ok(),
            Value::String(_) | Value::Boolean(_) | Value::List(_) | Value::Table(_) => None,
        };
        visitor.visit_f64(float.ok_or_else(|| Fault::expected("a number", self.0))?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_str(self.text()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.text().ok().filter(|text| variants.contains(text)) {
            Some(text) => visitor.visit_enum(StrDeserializer::<Fault>::new(text)),
            None => Err(Fault::expected(&format!("one of {}", variants.join(", ")), self.0)),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.0.value {
            Value::List(items) => visitor.visit_seq(Items(items.iter())),
            Value::Text(text) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                let items: Vec<Node> = parts.map(|part| Node::text(self.0.origin.clone(), part)).collect();
                visitor.visit_seq(Items(items.iter()))
            }
            Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Table(_) => {
                Err(Fault::expected_other("a list", self.0))
            }
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Value::Table(table) = &self.0.value else {
            return Err(Fault::expected_other("a section", self.0));
        };
        visitor.visit_map(Entries {
            entries: table.iter(),
            value: None,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if let Value::Table(table) = &self.0.value
            && let Some((key, node)) = table.iter().find(|(key, _)| !fields.contains(&key.as_str()))
        {
            let known = fields.join(", ");
            return Err(Fault::new(FaultKind::Unknown { known }).below(key).at(node));
        }
        self.deserialize_map(visitor)
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Items<'a>(std::slice::Iter<'a, Node>);

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;
    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let item = self.0.next();
        item.map(|node| seed.deserialize(Reader(node)).map_err(|fault| fault.at(node)))
            .transpose()
    }
}

struct Entries<'a> {
    entries: std::collections::btree_map::Iter<'a, String, Node>,
    value: Option<(&'a str, &'a Node)>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;
    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((key, node)) = self.entries.next() else {
            return Ok(None);
        };
        self.value = Some((key, node));
        let key_reader: StringDeserializer<Fault> = key.clone().into_deserializer();
        seed.deserialize(key_reader)
            .map(Some)
            .map_err(|fault| fault.below(key).at(node))
    }
    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (key, node) = self.value.take().expect("serde asks for a value after its key");
        seed.deserialize(Reader(node))
            .map_err(|fault| fault.below(key).at(node))
    }
}
