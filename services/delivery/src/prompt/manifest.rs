//! The context manifest (B2): every part of a prompt with its source, size and hash, and the number of cut bytes. An
//! audit can prove from it that a prompt holds no part of another task or account.

use domain::InstructionLayout;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Whether the instructions were sent apart from the input or in front of it (S14).
    pub layout: InstructionLayout,
    pub parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// `instructions` or `input`.
    pub layer: String,
    /// The kind of part: `policy`, `role`, `notification`, `message` …
    pub part: String,
    /// Where the part is stored: `profile/1`, `notification/ci-4711`, `message/0190…`.
    pub source: String,
    /// Size as sent.
    pub bytes: usize,
    pub sha256: String,
    /// Bytes of the source that were cut.
    pub cut_bytes: usize,
}

impl Manifest {
    pub fn new(layout: InstructionLayout) -> Manifest {
        Manifest {
            layout,
            parts: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, layer: &str, part: &str, source: String, sent: &str, cut_bytes: usize) {
        self.parts.push(Part {
            layer: layer.to_owned(),
            part: part.to_owned(),
            source,
            bytes: sent.len(),
            sha256: sha256(sent),
            cut_bytes,
        });
    }
}

pub(super) fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}
