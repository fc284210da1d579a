//! The context manifest (B2): every part of a prompt, where it came from, its size and hash, and what was cut. From it
//! an audit can prove that nothing of another task or account ever entered.

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
    /// What it is: `policy`, `role`, `notification`, `message` …
    pub part: String,
    /// Where it is stored: `profile/1`, `notification/ci-4711`, `message/0190…`.
    pub source: String,
    /// As sent.
    pub bytes: usize,
    pub sha256: String,
    /// Bytes of the source that were left out.
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
