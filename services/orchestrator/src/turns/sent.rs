//! What the model of a turn got, in its parts: their texts as slices of what is stored, and those of an assembled context rendered
//! again from the turns that they are of. Pure.

use std::{borrow::Cow, collections::HashSet};

use api::turns::{Note, Turn};
use prompt::{
    Manifest, PastTurn, entries_left_out, entry_input_cut, entry_reply_cut,
    manifest::{Because, Hash, Layer, Part, PartKind, Source},
    note_parts,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::store::{Pasts, SpawningTurn};

/// A part and its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// `instructions`, `context`, `input` or `notes`.
    pub layer: &'static str,
    pub part: Cow<'a, Part>,
    /// None: its source is no longer there, or gives another text.
    pub text: Option<Cow<'a, str>>,
}

/// The stored texts of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    pub instructions: Option<&'a str>,
    pub input: &'a str,
    pub notes: &'a [Note],
}

/// The rows of earlier turns, from which assembled contexts are rendered again.
#[derive(Clone, Copy, Debug)]
pub struct Earlier<'a> {
    pub pasts: &'a Pasts,
    /// Of a branch.
    pub spawning: Option<&'a SpawningTurn>,
}

/// Bytes of earlier turns that are read to show assembled contexts; and as many of what a spawning turn had said.
pub const PASTS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The manifest of a turn, without the parts of results; none: another version has written it.
pub fn manifest_of(turn: &Turn) -> Option<Manifest> {
    let mut manifest: Manifest = serde_json::from_value(turn.manifest.clone()).ok()?;
    manifest.parts.retain(|part| part.part != PartKind::ToolResult);
    Some(manifest)
}

/// A part as it is shown, with what follows from it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShownPart {
    #[serde(flatten)]
    pub part: Part,
    /// The prompt of the turn before in the session had the same text from the same source.
    pub same_as_previous: bool,
    pub tokens_estimate: usize,
}

/// Text of a model's language has about so many bytes a token.
const TOKEN_BYTES: usize = 4;

/// A manifest as it is shown, with the parts of what the model got `later`, which no other turn has got.
pub fn manifest_shown(mut manifest: Manifest, later: Vec<Part>, previous: Option<&Manifest>) -> Value {
    let shown = |part: Part, same_as_previous: bool| ShownPart {
        tokens_estimate: part.bytes / TOKEN_BYTES,
        same_as_previous,
        part,
    };
    fn text(part: &Part) -> (Hash, Layer, &Source) {
        (part.sha256, part.layer, &part.source)
    }
    let before = previous.map_or(&[][..], |previous| &previous.parts);
    let before: HashSet<(Hash, Layer, &Source)> = before.iter().map(text).collect();
    let own = std::mem::take(&mut manifest.parts).into_iter().map(|part| {
        let is_same = before.contains(&text(&part));
        shown(part, is_same)
    });
    let parts: Vec<ShownPart> = own.chain(later.into_iter().map(|part| shown(part, false))).collect();
    let value = |value: serde_json::Result<Value>| value.expect("a manifest serialises: texts and numbers");
    let mut manifest = value(serde_json::to_value(manifest));
    manifest["parts"] = value(serde_json::to_value(parts));
    manifest
}

/// The parts of a turn's manifest as they are shown, those of results too.
pub fn parts_shown(turn: &Turn) -> Vec<ShownPart> {
    let parts = turn.manifest.get("parts").cloned();
    parts
        .and_then(|parts| serde_json::from_value(parts).ok())
        .unwrap_or_default()
}

/// The word of a kind.
pub fn word(kind: &impl Serialize) -> String {
    let word = serde_json::to_value(kind).ok();
    word.and_then(|word| Some(word.as_str()?.to_owned()))
        .unwrap_or_default()
}

/// The turns that a prompt was assembled from, in its order, each once.
pub fn past_of(manifest: &Manifest) -> Vec<Uuid> {
    let mut known = HashSet::new();
    let turns = manifest.layer(Layer::Context).filter_map(|part| match part.source {
        Source::TurnInput(id) | Source::TurnReply(id) => Some(id),
        Source::Message(_) | Source::Named(_) => None,
    });
    turns.filter(|id| known.insert(*id)).collect()
}

/// Whether a prompt shows turns that the parent of its branch had.
pub fn has_base(manifest: &Manifest) -> bool {
    let mut parts = manifest.layer(Layer::Context);
    parts.any(|part| part.because == Because::Base)
}

/// The text of a part of the layer context, from its source as it is now; of a spawning turn, as its branch knows the turn. None: the
/// source is not there, or has no such text.
pub fn context_text(part: &Part, manifest: &Manifest, earlier: Earlier<'_>) -> Option<String> {
    let whole = |id| -> Option<Cow<'_, PastTurn>> {
        let past = earlier.pasts.get(&id).filter(|past| past.is_whole)?;
        match earlier.spawning.filter(|spawning| spawning.id == id) {
            Some(spawning) => spawning.known(&past.turn).map(Cow::Owned),
            None => Some(Cow::Borrowed(&past.turn)),
        }
    };
    let text = match part.source {
        Source::TurnInput(id) => entry_input_cut(whole(id)?.as_ref(), part.cut_bytes)?,
        Source::TurnReply(id) => entry_reply_cut(whole(id)?.as_ref(), part.cut_bytes)?,
        Source::Message(_) | Source::Named(_) => {
            let left_out = manifest
                .left_out
                .iter()
                .find(|left_out| left_out.part == PartKind::Entry);
            entries_left_out(left_out.filter(|_| part.part == PartKind::EntriesLeftOut)?.count)
        }
    };
    Some(text.into_string())
}

/// Everything that the model got but results of tools, in its order.
pub fn pieces<'a>(stored: Stored<'a>, manifest: &'a Manifest, earlier: Earlier<'_>) -> Vec<Piece<'a>> {
    let instructions = stored.instructions.unwrap_or_default();
    let mut pieces = slices(manifest, ("instructions", Layer::Instructions), instructions);
    pieces.extend(manifest.layer(Layer::Context).map(|part| {
        let text = context_text(part, manifest, earlier).filter(|text| Hash::of(text) == part.sha256);
        Piece {
            layer: "context",
            part: Cow::Borrowed(part),
            text: text.map(Cow::Owned),
        }
    }));
    let input = manifest.own_input(instructions, stored.input).unwrap_or_default();
    pieces.extend(slices(manifest, ("input", Layer::Input), input));
    for note in stored.notes {
        let mut from = 0;
        for part in note_parts(&note.text, &note.notifications) {
            let text = note.text.get(from..from + part.bytes);
            from += part.bytes;
            pieces.push(Piece {
                layer: "notes",
                part: Cow::Owned(part),
                text: text.map(Cow::Borrowed),
            });
        }
    }
    pieces
}

fn slices<'a>(manifest: &'a Manifest, (name, layer): (&'static str, Layer), text: &'a str) -> Vec<Piece<'a>> {
    let slices = manifest.cover(layer, text).slices;
    let mut texts = slices.into_iter().map(|(slice, is_its)| is_its.then_some(slice.text));
    let parts = manifest.layer(layer);
    let piece = |part| Piece {
        layer: name,
        part: Cow::Borrowed(part),
        text: texts.next().flatten().map(Cow::Borrowed),
    };
    parts.map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part `n` of a manifest; its text is that of `text`.
    fn part(n: usize, text: usize) -> Part {
        let source = Source::named(format!("notification/n-{n}"));
        Part::of(Layer::Input, PartKind::Notification, source, &format!("text {text}"))
    }

    /// More parts than a comparison of each with each has time for.
    #[test]
    fn a_long_manifest_is_shown_with_what_the_turn_before_had() {
        let manifest = |parts: Vec<Part>| Manifest {
            parts,
            ..Manifest::new(domain::InstructionLayout::Layered)
        };
        let count = 20_000;
        let previous = manifest((0..count).map(|n| part(n, n)).collect());
        // Each third text has changed, and the second half comes from sources that are new.
        let is_same = |n: usize| !n.is_multiple_of(3) && n < count / 2;
        let own = (0..count).map(|n| match n < count / 2 {
            true => part(n, if n.is_multiple_of(3) { n + count } else { n }),
            false => part(n + count, n),
        });
        let own: Vec<Part> = own.collect();
        let later = vec![part(1, 1)];
        let shown = manifest_shown(manifest(own.clone()), later.clone(), Some(&previous));
        let parts: Vec<ShownPart> = serde_json::from_value(shown["parts"].clone()).unwrap();
        let expected = own.into_iter().enumerate().map(|(n, part)| (part, is_same(n)));
        let expected = expected.chain(later.into_iter().map(|part| (part, false)));
        assert!(
            parts
                .iter()
                .map(|shown| (shown.part.clone(), shown.same_as_previous))
                .eq(expected)
        );
        let again = manifest_shown(previous.clone(), Vec::new(), Some(&previous));
        let is_told = |part: &Value| part["same_as_previous"] == true;
        assert!(again["parts"].as_array().unwrap().iter().all(is_told));
        let first = manifest_shown(previous, Vec::new(), None);
        assert!(!first["parts"].as_array().unwrap().iter().any(is_told));
    }

    #[test]
    fn a_past_has_each_turn_once_in_its_order() {
        let id = |n: usize| Uuid::from_u128(n as u128);
        let of = |source| Part::of(Layer::Context, PartKind::Entry, source, "");
        let mut manifest = Manifest::new(domain::InstructionLayout::Layered);
        let entries = (0..20_000)
            .rev()
            .flat_map(|n| [of(Source::TurnInput(id(n))), of(Source::TurnReply(id(n)))]);
        manifest.parts = entries.collect();
        manifest.parts.push(of(Source::TurnInput(id(7))));
        assert!(past_of(&manifest).into_iter().eq((0..20_000).rev().map(id)));
    }
}
