//! Artifacts: files of tasks. Their type is read from their first bytes, never from what a sender says of them. Few types are
//! kept: images and PDF, which models take, and text. A text that a browser would run (SVG, HTML) is a text like any other.

use std::{borrow::Cow, fmt, ops::Deref};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::string_enum::string_enum;

const NAME_BYTES_MAX: usize = 255;

string_enum! {
    /// Where an artifact is from.
    ArtifactSource {
        /// A person or an agent sent it.
        Upload = "upload",
        /// It was read at an address.
        Fetch = "fetch",
        /// A model made it.
        Model = "model",
    }
}

string_enum! {
    MediaType {
        Png = "image/png",
        Jpeg = "image/jpeg",
        Gif = "image/gif",
        Webp = "image/webp",
        Pdf = "application/pdf",
        /// UTF-8.
        Text = "text/plain",
    }
}

/// The name of a file: 1 to 255 bytes, not blank, without control characters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct FileName(String);

impl TryFrom<String> for FileName {
    type Error = String;
    fn try_from(name: String) -> Result<FileName, String> {
        if name.trim().is_empty() {
            return Err("empty".to_owned());
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(format!("{} bytes; at most {NAME_BYTES_MAX} are taken", name.len()));
        }
        if name.contains(char::is_control) {
            return Err("holds a control character".to_owned());
        }
        Ok(FileName(name))
    }
}

impl Deref for FileName {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl JsonSchema for FileName {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "FileName".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let printable = r"[^\x00-\x1f\x7f-\x9f]";
        let pattern = format!(r"^{printable}*[^\s\x00-\x1f\x7f-\x9f]{printable}*$");
        json_schema!({"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": pattern})
    }
}

impl MediaType {
    /// The type of a file; none: it is none of these.
    pub fn of(content: &[u8]) -> Option<MediaType> {
        match content {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            [b'%', b'P', b'D', b'F', b'-', ..] => Some(Self::Pdf),
            other => is_text(other).then_some(Self::Text),
        }
    }

    pub fn is_image(self) -> bool {
        match self {
            Self::Png | Self::Jpeg | Self::Gif | Self::Webp => true,
            Self::Pdf | Self::Text => false,
        }
    }
}

/// UTF-8 without the control characters that no text file has. An empty file is none.
fn is_text(content: &[u8]) -> bool {
    // As in the standard for sniffing (mimesniff.spec.whatwg.org, "binary data byte").
    let is_binary = |byte: &u8| matches!(byte, 0..=0x08 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    !content.is_empty() && !content.iter().any(is_binary) && std::str::from_utf8(content).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_name() {
        let check = |name: &str, good: bool| {
            assert_eq!(FileName::try_from(name.to_owned()).is_ok(), good, "{name:?}");
        };
        check("plan.pdf", true);
        check("Grüße/../\"x\".txt", true);
        check(&"x".repeat(255), true);
        check(&"x".repeat(256), false);
        check("", false);
        check("  ", false);
        check("a\r\nb", false);
        check("a\u{85}b", false);
    }

    #[test]
    fn a_type_is_read_from_the_content() {
        let check = |content: &[u8], expected: Option<MediaType>| {
            assert_eq!(MediaType::of(content), expected, "{}", content.escape_ascii());
        };
        check(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", Some(MediaType::Png));
        check(b"\x89PNG\n\x1a\n", None);
        check(b"\xff\xd8\xff\xe0\0\x10JFIF", Some(MediaType::Jpeg));
        check(b"\xff\xd8", None);
        check(b"GIF89a\x01\0", Some(MediaType::Gif));
        check(b"GIF87a", Some(MediaType::Gif));
        check(b"GIF88a", Some(MediaType::Text));
        check(b"RIFF\x10\0\0\0WEBPVP8 ", Some(MediaType::Webp));
        check(b"RIFF\x10\0\0\0WAVEfmt ", None);
        check(b"%PDF-1.7\n%\xe2\xe3", Some(MediaType::Pdf));
        check("Grüße\r\n\tund \u{1f600}\u{c}".as_bytes(), Some(MediaType::Text));
        check(b"\xef\xbb\xbftext with a mark", Some(MediaType::Text));
        check(b"<!doctype html><script>alert(1)</script>", Some(MediaType::Text));
        check(
            b"<svg xmlns='http://www.w3.org/2000/svg' onload='x()'/>",
            Some(MediaType::Text),
        );
        // A terminal's colours are text.
        check(b"\x1b[31mred\x1b[0m", Some(MediaType::Text));
        check(b"", None);
        check(b"a\0b", None);
        check(b"\x7fELF\x02\x01\x01", None);
        check(b"PK\x03\x04", None);
        check(b"\xfe\xff\0a", None);
        check(b"caf\xe9", None);
        check(b"cut \xe2\x82", None);
    }
}
