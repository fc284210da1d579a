//! The context manifest (B2): every part of a prompt with its source, size and hash, and the number of cut bytes. An
//! audit can prove from it that a prompt holds no part of another task or account. It is shown as JSON and stored packed,
//! in a third of the size: it is written with every turn and seldom read.

use domain::InstructionLayout;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// First byte of the packed form. A change of the types below, or of the order of their variants, needs another.
const VERSION: u8 = 1;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Whether the instructions were sent apart from the input or in front of it (S14).
    pub layout: InstructionLayout,
    pub parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    pub layer: Layer,
    pub part: PartKind,
    pub source: Source,
    /// Size as sent.
    pub bytes: usize,
    pub sha256: Hash,
    /// Bytes of the source that were cut.
    pub cut_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Instructions,
    Input,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartKind {
    Policy,
    Coordinator,
    Taskless,
    Role,
    Interruption,
    Notification,
    Task,
    Thread,
    Message,
    Briefing,
    Overview,
    Followup,
    Stopped,
    Injected,
}

/// Where a part is stored: `profile/1`, `notification/ci-4711`, `message/0190…`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    Message(Uuid),
    Named(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hash([u8; 32]);

impl Hash {
    pub fn of(text: &str) -> Hash {
        Hash(Sha256::digest(text.as_bytes()).into())
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl Manifest {
    pub fn new(layout: InstructionLayout) -> Manifest {
        Manifest {
            layout,
            parts: Vec::new(),
        }
    }

    pub fn add(&mut self, layer: Layer, part: PartKind, source: Source, sent: &str, cut_bytes: usize) {
        self.parts.push(Part {
            layer,
            part,
            source,
            bytes: sent.len(),
            sha256: Hash::of(sent),
            cut_bytes,
        });
    }

    /// The stored form.
    pub fn packed(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![VERSION]).expect("a manifest serialises: texts and numbers")
    }

    /// None: another version of Signalbox has packed it.
    pub fn unpacked(packed: &[u8]) -> Option<Manifest> {
        let (&VERSION, packed) = packed.split_first()? else {
            return None;
        };
        postcard::from_bytes(packed).ok()
    }
}

const MESSAGE: &str = "message/";

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_shown = serializer.is_human_readable();
        match self {
            Source::Message(id) if is_shown => serializer.collect_str(&format_args!("{MESSAGE}{id}")),
            Source::Named(name) if is_shown => serializer.serialize_str(name),
            Source::Message(id) => Ok::<_, &str>(id.as_bytes()).serialize(serializer),
            Source::Named(name) => Err::<&[u8; 16], _>(name).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            let stored = Result::<[u8; 16], String>::deserialize(deserializer)?;
            return Ok(stored.map_or_else(Source::Named, |id| Source::Message(Uuid::from_bytes(id))));
        }
        let name = String::deserialize(deserializer)?;
        let id = name.strip_prefix(MESSAGE).and_then(|id| Uuid::try_parse(id).ok());
        Ok(id.map_or(Source::Named(name), Source::Message))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Deserialize::deserialize(deserializer).map(Hash);
        }
        let mut hash = [0; 32];
        hex::decode_to_slice(String::deserialize(deserializer)?, &mut hash).map_err(D::Error::custom)?;
        Ok(Hash(hash))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest() -> Manifest {
        let mut manifest = Manifest::new(InstructionLayout::Inline);
        let named = Source::Named("notification/ci-4711".to_owned());
        manifest.add(Layer::Input, PartKind::Notification, named, "red", 70_000);
        manifest.add(
            Layer::Input,
            PartKind::Message,
            Source::Message(Uuid::from_u128(7)),
            "",
            0,
        );
        manifest
    }

    #[test]
    fn packed_and_shown_forms_hold_the_same() {
        let shown = json!({"layout": "inline", "parts": [
            {"layer": "input", "part": "notification", "source": "notification/ci-4711", "bytes": 3,
             "sha256": "b1f51a511f1da0cd348b8f8598db32e61cb963e5fc69e2b41485bf99590ed75a", "cut_bytes": 70_000},
            {"layer": "input", "part": "message", "source": "message/00000000-0000-0000-0000-000000000007", "bytes": 0,
             "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "cut_bytes": 0},
        ]});
        assert_eq!(serde_json::to_value(manifest()).unwrap(), shown);
        assert_eq!(serde_json::from_value::<Manifest>(shown).unwrap(), manifest());
        assert_eq!(Manifest::unpacked(&manifest().packed()), Some(manifest()));
    }

    /// Rows of this form are stored: a change of these bytes needs another version byte.
    #[test]
    fn the_packed_form_stays() {
        let packed = hex::encode(manifest().packed());
        assert_eq!(
            packed,
            "010102010501146e6f74696669636174696f6e2f63692d3437313103b1f51a511f1da0cd348b8f8598db32e61cb963e5fc69e2b41485bf99590ed75a\
             f0a2040108000000000000000000000000000000000700e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85500"
        );
    }

    #[test]
    fn other_versions_and_cut_bytes_are_not_read() {
        let mut packed = manifest().packed();
        assert_eq!(Manifest::unpacked(&packed[..packed.len() - 1]), None);
        packed[0] += 1;
        assert_eq!(Manifest::unpacked(&packed), None);
        assert_eq!(Manifest::unpacked(b""), None);
    }
}
