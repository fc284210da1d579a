//! Judges an answer: it must equal the answer for an unknown thing and must hold no data of the victim.

use std::collections::BTreeSet;

use serde_json::Value;
use testkit::tenant::secret;

use super::{
    attempt::{Attempt, Expected},
    generator::Ids,
    names::replaced,
};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) kind: String,
    pub(crate) body: String,
}

/// Texts that only the victim's rows hold.
pub(crate) struct Marks {
    secret: String,
    /// Ids that are long enough to be unique.
    ids: BTreeSet<String>,
}

impl Marks {
    pub(crate) fn of(account: &str, ids: &Ids) -> Marks {
        let unique = |id: &&String| id.len() >= 16 || id.to_lowercase().contains(account);
        Marks {
            secret: secret(account),
            ids: ids
                .iter()
                .filter(|(kind, _)| **kind != "account")
                .flat_map(|(_, ids)| ids.iter().filter(unique).map(|id| id.to_lowercase()))
                .collect(),
        }
    }

    /// Victim's texts in bytes that the attacker received and had not sent itself.
    pub(crate) fn found_in(&self, text: &str, said: &[(String, String)]) -> Option<String> {
        let text = without(text, said).to_lowercase();
        std::iter::once(&self.secret)
            .chain(&self.ids)
            .find(|mark| text.contains(mark.as_str()))
            .cloned()
    }

    /// The same for bytes that may hold ids which the attacker had sent earlier.
    pub(crate) fn secret_in(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.secret)
    }
}

/// Why the attempt did not get the required answer.
pub(crate) fn fault(attempt: &Attempt, answer: &Answer, twin: &Answer, marks: &Marks) -> Option<String> {
    let said = said(attempt);
    if let Some(mark) = marks.found_in(&answer.body, &said) {
        return Some(format!("shows {mark}"));
    }
    if attempt.expected == Expected::Refused && !(400..500).contains(&answer.status) {
        return Some(format!("is not refused: {}", answer.status));
    }
    if answer.status >= 500 {
        return Some(format!("fails: {}", answer.status));
    }
    let (ours, theirs) = (plain(answer, &said, 0), plain(twin, &said, 1));
    (ours != theirs).then(|| format!("differs from its twin:\n  {ours:?}\n  {theirs:?}"))
}

/// The request's names as an answer may spell them.
fn said(attempt: &Attempt) -> Vec<(String, String)> {
    let mut said = Vec::new();
    for (name, twin) in &attempt.named {
        // Trimmed: one name may be another one with a blank.
        for spelling in [
            |name: &str| name.trim().to_owned(),
            |name: &str| unescaped(name).trim().to_owned(),
            |name: &str| unescaped(name).trim().to_lowercase(),
        ] {
            said.push((spelling(name), spelling(twin)));
        }
    }
    said.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    said.dedup();
    said
}

fn unescaped(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%' && after.len() >= 2)
            .then(|| {
                std::str::from_utf8(&after[..2])
                    .ok()
                    .and_then(|hex| u8::from_str_radix(hex, 16).ok())
            })
            .flatten();
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn without(text: &str, said: &[(String, String)]) -> String {
    let names: Vec<(String, String)> = said.iter().map(|(name, _)| (name.clone(), String::new())).collect();
    replaced(text, &names)
}

/// The answer without the request's own data: its id, its names, the time.
fn plain(answer: &Answer, said: &[(String, String)], which: usize) -> (u16, String, String) {
    let names: Vec<(String, String)> = said
        .iter()
        .map(|(name, twin)| ([name, twin][which].clone(), "<name>".to_owned()))
        .collect();
    let mut value: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| Value::String(answer.body.clone()));
    if let Some(fields) = value.as_object_mut() {
        fields.remove("instance");
    }
    (answer.status, answer.kind.clone(), replaced(&value.to_string(), &names))
}
