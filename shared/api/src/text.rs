//! Texts with limits. Each is checked when it is parsed, and its schema declares the same limits.

use std::{borrow::Cow, fmt};

use derive_more::{Deref, Into};
use domain::{NotTheirs, is_reserved};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A text of at most so many bytes of UTF-8; with `BYTES_MIN` 1, one that is not blank. Without U+0000, which Postgres
/// cannot store.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deref, Into, Serialize, Deserialize)]
#[deref(forward)]
#[serde(try_from = "String")]
pub struct Text<const BYTES_MIN: usize, const BYTES_MAX: usize>(String);

/// The name of an account.
pub type Name = Text<1, 128>;

impl<const BYTES_MIN: usize, const BYTES_MAX: usize> Text<BYTES_MIN, BYTES_MAX> {
    pub fn parse(text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        if BYTES_MIN > 0 && text.trim().is_empty() {
            return Err("empty".to_owned());
        }
        if text.len() > BYTES_MAX {
            return Err(format!("{} bytes; at most {BYTES_MAX} are taken", text.len()));
        }
        if text.contains('\0') {
            return Err("a text holds the character U+0000".to_owned());
        }
        Ok(Text(text))
    }
}

impl<const BYTES_MIN: usize, const BYTES_MAX: usize> TryFrom<String> for Text<BYTES_MIN, BYTES_MAX> {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Text::parse(text)
    }
}

impl<const BYTES_MIN: usize, const BYTES_MAX: usize> fmt::Display for Text<BYTES_MIN, BYTES_MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<const BYTES_MIN: usize, const BYTES_MAX: usize> JsonSchema for Text<BYTES_MIN, BYTES_MAX> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("Text_{BYTES_MIN}_{BYTES_MAX}").into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        if BYTES_MIN == 0 {
            return json_schema!({"type": "string", "maxLength": BYTES_MAX, "pattern": r"^[^\x00]*$"});
        }
        json_schema!({"type": "string", "minLength": BYTES_MIN, "maxLength": BYTES_MAX, "pattern": r"^[^\x00]*[^\s\x00][^\x00]*$"})
    }
}

/// The name of a key or an agent as an author. People and agents see it, so it must not resemble Signalbox's own.
#[derive(Clone, PartialEq, Eq, Debug, Deref, Into, Serialize, Deserialize, JsonSchema)]
#[deref(forward)]
#[into(String)]
#[serde(try_from = "Name")]
#[schemars(inline)]
pub struct ActorName(Name);

impl TryFrom<Name> for ActorName {
    type Error = NotTheirs;
    fn try_from(name: Name) -> Result<Self, NotTheirs> {
        if is_reserved(&name) {
            Err(NotTheirs::Reserved)
        } else {
            Ok(ActorName(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_limits() {
        let check = |text: &str, may_be_empty: bool, must_not: bool| {
            assert_eq!(Text::<0, 8>::parse(text).is_ok(), may_be_empty, "{text:?}");
            assert_eq!(Text::<1, 8>::parse(text).is_ok(), must_not, "{text:?}");
        };
        check("", true, false);
        check(" \t", true, false);
        check("a b", true, true);
        check("éééé", true, true);
        check("ééééé", false, false);
        check("a\0b", false, false);
    }

    #[test]
    fn a_reserved_name_is_refused() {
        let read = |name: &str| serde_json::from_value::<ActorName>(name.into()).map_err(|error| error.to_string());
        assert_eq!(&*read("Coder").unwrap(), "Coder");
        assert_eq!(read("\u{41e}perator").unwrap_err(), NotTheirs::Reserved.to_string());
        assert_eq!(read(" ").unwrap_err(), "empty");
    }
}
