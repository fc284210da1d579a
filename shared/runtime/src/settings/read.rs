//! Deserializes a section into a type, strictly: no number is rounded, a text becomes a number or a boolean only if its
//! source has nothing but texts, and unknown fields are refused.

use std::{fmt, net::SocketAddr};

use config::{Config, Map, Value, ValueKind};
use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeOwned, Error as _, Expected, IntoDeserializer, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer, StrDeserializer},
    },
};
use serde_path_to_error::Segment;

use super::{
    SettingsError,
    source::{child, find, is_untyped, place, sorted},
};

/// Reads one section as a type. An absent section is empty.
pub(super) fn section<T: DeserializeOwned>(config: &Config, section: &str) -> Result<T, SettingsError> {
    let absent = Value::new(None, Map::<String, Value>::new());
    let value = find(&config.cache, section).unwrap_or(&absent);
    serde_path_to_error::deserialize(Reader(value)).map_err(|error| {
        let (mut setting, mut at) = (section.to_owned(), value);
        for segment in error.path() {
            at = match (segment, &at.kind) {
                (Segment::Map { key }, _) => {
                    setting = format!("{setting}.{key}");
                    child(at, key).unwrap_or(at)
                }
                (Segment::Seq { index }, ValueKind::Array(items)) => items.get(*index).unwrap_or(at),
                (Segment::Seq { .. } | Segment::Enum { .. } | Segment::Unknown, _) => at,
            };
        }
        match error.into_inner() {
            Fault::Unknown { key, known } => SettingsError::Unknown {
                setting: format!("{setting}.{key}"),
                origin: place(child(at, &key)),
                known,
            },
            Fault::Missing(field) => SettingsError::missing(&format!("{setting}.{field}")),
            Fault::Invalid(problem) => SettingsError::Invalid {
                setting,
                origin: place(Some(at)),
                problem,
            },
        }
    })
}

/// Reads one setting as a type; none: no source sets it.
pub(super) fn value<T: DeserializeOwned>(config: &Config, setting: &str) -> Result<Option<T>, SettingsError> {
    let Some(value) = find(&config.cache, setting) else {
        return Ok(None);
    };
    T::deserialize(Reader(value))
        .map(Some)
        .map_err(|fault| SettingsError::Invalid {
            setting: setting.to_owned(),
            origin: place(Some(value)),
            problem: match fault {
                Fault::Invalid(problem) => problem,
                Fault::Unknown { .. } | Fault::Missing(_) => "expected a value".to_owned(),
            },
        })
}

/// The address of a listener, for serde's `deserialize_with`: serde's own error does not say what is allowed.
pub fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let refused = |_| de::Error::custom("expected an IP address with a port, such as 127.0.0.1:8080");
    text.parse().map_err(refused)
}

/// An error, without its path.
#[derive(Debug, thiserror::Error)]
#[error("{self:?}")]
enum Fault {
    Unknown { key: String, known: String },
    Missing(&'static str),
    Invalid(String),
}

impl Fault {
    fn expected(what: &dyn Expected, found: &Value) -> Fault {
        let shown = match &found.kind {
            ValueKind::I128(number) => number.to_string(),
            ValueKind::Float(number) => number.to_string(),
            ValueKind::Boolean(boolean) => boolean.to_string(),
            // Any other text may be a secret in the wrong place.
            ValueKind::String(text) if is_number_or_word(text) => format!("{text:?}"),
            ValueKind::String(text) => format!("a text of {} bytes", text.len()),
            _ => return Fault::expected_other(what, found),
        };
        Fault::custom(format!("expected {what}, found {shown}"))
    }

    /// Not shown: the expected text or section may be a secret, and the value found may be that secret without its
    /// quotes, or in the wrong line.
    fn expected_other(what: &dyn Expected, found: &Value) -> Fault {
        let kind = match &found.kind {
            ValueKind::String(_) => "a text",
            ValueKind::Boolean(_) => "true or false",
            ValueKind::Array(_) => "a list",
            ValueKind::Table(_) => "a section",
            ValueKind::Nil => "nothing",
            ValueKind::I64(_) | ValueKind::I128(_) | ValueKind::U64(_) | ValueKind::U128(_) | ValueKind::Float(_) => {
                "a number"
            }
        };
        Fault::custom(format!("expected {what}, found {kind}"))
    }
}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Fault {
        Fault::Invalid(message.to_string())
    }
    fn missing_field(field: &'static str) -> Fault {
        Fault::Missing(field)
    }
    /// serde would show a text, which may be a secret.
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Fault {
        match found {
            Unexpected::Signed(number) => Fault::custom(format!("expected {expected}, found {number}")),
            Unexpected::Unsigned(number) => Fault::custom(format!("expected {expected}, found {number}")),
            _ => Fault::custom(format!("expected {expected}")),
        }
    }
    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Fault {
        Fault::invalid_type(found, expected)
    }
}

/// A number, or a short word of small letters.
fn is_number_or_word(text: &str) -> bool {
    let numeric = |c: u8| c.is_ascii_digit() || b"+-._".contains(&c);
    let letters = |c: u8| c.is_ascii_lowercase() || c == b'_';
    (text.len() <= 24 && text.bytes().all(numeric)) || (text.len() <= 12 && text.bytes().all(letters))
}

struct Reader<'a>(&'a Value);

impl<'a> Reader<'a> {
    /// The text, if the source has nothing but texts.
    fn untyped(&self) -> Option<&'a str> {
        match &self.0.kind {
            ValueKind::String(text) if is_untyped(self.0) => Some(text),
            _ => None,
        }
    }

    fn text(&self) -> Result<&'a str, Fault> {
        match &self.0.kind {
            ValueKind::String(text) => Ok(text),
            _ => Err(Fault::expected_other(&"a text in quotes", self.0)),
        }
    }
}

macro_rules! whole_numbers {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            let number = match &self.0.kind {
                ValueKind::I128(number) => i64::try_from(*number).ok(),
                _ => self.untyped().and_then(|text| text.trim().parse().ok()),
            };
            match number {
                Some(number) => visitor.visit_i64(number),
                None => Err(Fault::expected(&visitor, self.0)),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.0.kind {
            ValueKind::I128(_) => self.deserialize_i64(visitor),
            ValueKind::Float(_) => self.deserialize_f64(visitor),
            ValueKind::Boolean(_) => self.deserialize_bool(visitor),
            ValueKind::Array(_) => self.deserialize_seq(visitor),
            ValueKind::Table(_) => self.deserialize_map(visitor),
            _ => self.deserialize_str(visitor),
        }
    }

    whole_numbers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match (&self.0.kind, self.untyped()) {
            (ValueKind::Boolean(boolean), _) => visitor.visit_bool(*boolean),
            (_, Some("true")) => visitor.visit_bool(true),
            (_, Some("false")) => visitor.visit_bool(false),
            _ => Err(Fault::expected(&"true or false", self.0)),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let number = match &self.0.kind {
            ValueKind::Float(number) => Some(*number),
            #[expect(clippy::cast_precision_loss, reason = "a ratio or a factor, written without a point")]
            ValueKind::I128(number) => Some(*number as f64),
            _ => self.untyped().and_then(|text| text.trim().parse().ok()),
        };
        visitor.visit_f64(number.ok_or_else(|| Fault::expected(&"a number", self.0))?)
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
            None => {
                let one = format!("one of {}", variants.join(", "));
                Err(Fault::expected(&one.as_str(), self.0))
            }
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match (&self.0.kind, self.untyped()) {
            (ValueKind::Array(items), _) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(Reader))),
            (_, Some(text)) => {
                let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
                let origin = place(Some(self.0));
                let items: Vec<Value> = parts.map(|part| Value::new(Some(&origin), part)).collect();
                visitor.visit_seq(SeqDeserializer::new(items.iter().map(Reader)))
            }
            _ => Err(Fault::expected_other(&"a list", self.0)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if !matches!(self.0.kind, ValueKind::Table(_)) {
            return Err(Fault::expected_other(&"a section", self.0));
        }
        let entries = sorted(self.0).into_iter();
        visitor.visit_map(MapDeserializer::new(entries.map(|(key, value)| (key, Reader(value)))))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let mut keys = sorted(self.0).into_iter();
        if let Some((key, _)) = keys.find(|(key, _)| !fields.contains(key)) {
            return Err(Fault::Unknown {
                key: key.to_owned(),
                known: fields.join(", "),
            });
        }
        self.deserialize_map(visitor)
    }

    serde::forward_to_deserialize_any! {
        f32 i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Fault> for Reader<'_> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}
