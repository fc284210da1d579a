//! Compares the layers of two turns, and writes unified diffs of their texts, within limits of lines and of time.

use std::{fmt::Write as _, time::Duration};

use api::{
    diff::{Change, DiffState, LayerDiff, ToolsDiff},
    turns::{ToolCall, Turn},
};
use contracts::quote::one_line;
use prompt::Manifest;
use serde_json::Value;
use similar::TextDiff;

use crate::turns::sent::{Earlier, Piece, Stored, manifest_of, pieces};

/// Lines of the differences of all layers together.
pub const LINES_MAX: usize = 5_000;
/// Lines around a change.
const AROUND: usize = 3;
/// The search for a short difference of a layer ends here; what it gives then is correct, and longer than it could be.
const SEARCH_MAX: Duration = Duration::from_millis(200);
/// Lines of a layer that are compared one by one. Longer ones differ as a whole.
const COMPARED_LINES_MAX: usize = 20_000;
const NO_END: &str = "\n\\ No newline at end of file\n";
const WRITES: &str = "writing to a String cannot fail";

/// A turn, taken apart into the texts of its layers.
pub struct Layers(Vec<(&'static str, String)>);

/// In the order in which a model reads them.
const LAYERS: [&str; 6] = ["instructions", "context", "input", "notes", "results", "reply"];

impl Layers {
    pub fn of(turn: &Turn, earlier: Earlier<'_>) -> Layers {
        let manifest = manifest_of(turn);
        let stored = Stored {
            instructions: turn.instructions.as_deref(),
            input: &turn.input,
            notes: &turn.notes,
        };
        let pieces = manifest.as_ref().map(|manifest| pieces(stored, manifest, earlier));
        let context = pieces
            .iter()
            .flatten()
            .filter(|piece| piece.layer == "context")
            .map(text_of);
        let notes = turn.notes.iter().map(|note| note.text.as_str());
        let instructions = turn.instructions.clone().unwrap_or_default();
        let input = manifest.as_ref().map_or(Some(&*turn.input), |manifest| {
            manifest.own_input(&instructions, &turn.input)
        });
        let texts = [
            instructions.clone(),
            context.collect(),
            input.unwrap_or(&turn.input).to_owned(),
            notes.collect(),
            results(&turn.tool_calls),
            turn.reply.clone().unwrap_or_default(),
        ];
        Layers(LAYERS.into_iter().zip(texts).collect())
    }
}

/// The calls with their results, as the model was given them.
fn results(calls: &[ToolCall]) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let text = |call: &ToolCall| {
        let result = call.result.as_ref().map(plain).unwrap_or_default();
        let head = format!("{} {}", call.name, plain(&call.arguments));
        format!("{}\n{result}\n", one_line(&head))
    };
    calls.iter().map(text).collect()
}

/// A part whose text is gone differs from every other.
fn text_of(piece: &Piece<'_>) -> String {
    let part = &piece.part;
    match &piece.text {
        Some(text) if text.ends_with('\n') => text.to_string(),
        Some(text) => format!("{text}\n"),
        None => format!(
            "[{} bytes of {} are not kept, sha256 {}]\n",
            part.bytes, part.source, part.sha256
        ),
    }
}

/// The layers that one of the turns has, and the number of lines that are not shown. `shows`: with texts.
pub fn layers(before: &Layers, after: &Layers, shows: bool) -> (Vec<LayerDiff>, usize) {
    let (mut found, mut lines, mut left_out) = (Vec::new(), LINES_MAX, 0);
    for ((layer, before), (_, after)) in before.0.iter().zip(&after.0) {
        let state = match (before.is_empty(), after.is_empty()) {
            (true, true) => continue,
            (true, false) => DiffState::Added,
            (false, true) => DiffState::Removed,
            (false, false) if before == after => DiffState::Same,
            (false, false) => DiffState::Changed,
        };
        let diff = (shows && state != DiffState::Same).then(|| {
            let (text, more) = unified(before, after, lines);
            lines = lines.saturating_sub(text.lines().count());
            left_out += more;
            text
        });
        found.push(LayerDiff {
            layer: (*layer).to_owned(),
            state,
            bytes_before: before.len(),
            bytes_after: after.len(),
            diff,
        });
    }
    (found, left_out)
}

/// A unified diff, and the number of its lines that are not in it. Lines end at `\n` alone; `TextDiff::diff_lines` also ends them at `\r`.
fn unified(before: &str, after: &str, lines_max: usize) -> (String, usize) {
    let [before, after] = [before, after].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    let [removed, added] = [before.len(), after.len()];
    if removed.max(added) > COMPARED_LINES_MAX {
        let text = format!("@@ -1,{removed} +1,{added} @@\n[too long to be compared line by line]\n");
        return cut(&text, lines_max);
    }
    let diff = TextDiff::configure().timeout(SEARCH_MAX).diff_slices(&before, &after);
    let mut text = String::new();
    for hunk in diff.unified_diff().context_radius(AROUND).iter_hunks() {
        writeln!(text, "{}", hunk.header()).expect(WRITES);
        for change in hunk.iter_changes() {
            let (sign, line) = (change.tag(), change.value());
            let end = if line.ends_with('\n') { "" } else { NO_END };
            write!(text, "{sign}{line}{end}").expect(WRITES);
        }
    }
    cut(&text, lines_max)
}

fn cut(text: &str, lines_max: usize) -> (String, usize) {
    let shown: String = text.split_inclusive('\n').take(lines_max).collect();
    let more = text.split_inclusive('\n').skip(lines_max).count();
    (shown, more)
}

/// Two values, if they differ.
pub fn change(before: Value, after: Value) -> Option<Change> {
    (before != after).then_some(Change { before, after })
}

/// The tools that were offered: by names, and by the hashes of their schemas where both turns have them.
pub fn tools(
    (before, after): (&[String], &[String]),
    (manifest_before, manifest_after): (Option<&Manifest>, Option<&Manifest>),
) -> Option<ToolsDiff> {
    let only = |in_one: &[String], not_in: &[String]| {
        let only = in_one.iter().filter(|name| !not_in.contains(name));
        only.cloned().collect::<Vec<String>>()
    };
    let (added, removed) = (only(after, before), only(before, after));
    let offers = manifest_before
        .and_then(|manifest| manifest.tools)
        .zip(manifest_after.and_then(|manifest| manifest.tools));
    let schemas_changed = before == after && offers.is_some_and(|(before, after)| before != after);
    let differs = schemas_changed || !added.is_empty() || !removed.is_empty();
    differs.then_some(ToolsDiff {
        added,
        removed,
        schemas_changed,
    })
}

/// One layer, with its text's difference.
#[cfg(test)]
pub(crate) fn compared(layer: &'static str, before: &str, after: &str) -> Option<LayerDiff> {
    let of = |text: &str| Layers(vec![(layer, text.to_owned())]);
    layers(&of(before), &of(after), true).0.pop()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(texts: [&str; 6]) -> Layers {
        Layers(LAYERS.into_iter().zip(texts.map(str::to_owned)).collect())
    }

    #[test]
    fn each_layer_says_what_became_of_it() {
        let before = of(["a", "b\n", "c\nd\n", "", "e", ""]);
        let after = of(["a", "", "c\nx\n", "f", "e", ""]);
        let (found, left_out) = layers(&before, &after, true);
        let lines: Vec<String> = found
            .iter()
            .map(|layer| {
                let diff = layer.diff.as_deref().unwrap_or("-");
                format!(
                    "{} {} {} {} {diff:?}",
                    layer.layer,
                    layer.state.as_str(),
                    layer.bytes_before,
                    layer.bytes_after
                )
            })
            .collect();
        assert_eq!(
            lines,
            [
                r#"instructions same 1 1 "-""#,
                r#"context removed 2 0 "@@ -1 +0,0 @@\n-b\n""#,
                r#"input changed 4 4 "@@ -1,2 +1,2 @@\n c\n-d\n+x\n""#,
                r#"notes added 0 1 "@@ -0,0 +1 @@\n+f\n\\ No newline at end of file\n""#,
                r#"results same 1 1 "-""#,
            ]
        );
        assert_eq!(left_out, 0);
        assert!(
            layers(&before, &after, false)
                .0
                .iter()
                .all(|layer| layer.diff.is_none())
        );
    }

    /// A `\r` ends no line: behind it the next line's sign would stand within a line.
    #[test]
    fn each_line_begins_with_its_sign() {
        let check = |before: &str, after: &str, expected: &str| {
            let found = compared("reply", before, after).unwrap();
            assert_eq!(found.diff.as_deref(), Some(expected), "{before:?} {after:?}");
        };
        check("x\ry\n", "x\rz\n", "@@ -1 +1 @@\n-x\ry\n+x\rz\n");
        check("x\r\n", "x\n", "@@ -1 +1 @@\n-x\r\n+x\n");
        let ends = "\n\\ No newline at end of file\n";
        check("x\r", "y", &format!("@@ -1 +1 @@\n-x\r{ends}+y{ends}"));
    }

    /// A model makes up names, and arguments that are no JSON.
    #[test]
    fn a_call_is_one_line_before_its_result() {
        let call = |name: &str, arguments: Value| ToolCall {
            call_id: "c-1".to_owned(),
            name: name.to_owned(),
            arguments,
            state: "finished".to_owned(),
            result: Some("ok".into()),
        };
        let calls = [
            call("task_status\nno_reply {}", "{\n".into()),
            call("a", serde_json::json!({"b": "c\n"})),
        ];
        assert_eq!(
            results(&calls),
            "task_status\\nno_reply {} {\\n\nok\na {\"b\":\"c\\n\"}\nok\n"
        );
    }

    #[test]
    fn the_lines_of_all_layers_have_one_limit() {
        let (many, more) = ("a\n".repeat(4_000), "b\n".repeat(4_000));
        let (found, left_out) = layers(
            &of([&many, "", &many, "", "", ""]),
            &of([&more, "", &more, "", "", ""]),
            true,
        );
        let shown: usize = found
            .iter()
            .map(|layer| layer.diff.as_ref().unwrap().lines().count())
            .sum();
        assert_eq!((shown, shown + left_out), (LINES_MAX, 2 * 8_001));
        let huge = "a\n".repeat(COMPARED_LINES_MAX + 1);
        let (found, _) = layers(&of([&huge, "", "", "", "", ""]), &of(["b\n", "", "", "", "", ""]), true);
        assert!(found[0].diff.as_ref().unwrap().contains("too long"));
    }

    #[test]
    fn tools_are_told_apart_by_name() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let (one, two) = (
            names(&["task_history", "no_reply"]),
            names(&["no_reply", "task_status"]),
        );
        let found = tools((&one, &two), (None, None)).unwrap();
        assert_eq!(
            (found.added, found.removed),
            (names(&["task_status"]), names(&["task_history"]))
        );
        assert_eq!(tools((&one, &one), (None, None)), None);
    }

    proptest! {
        #[test]
        fn any_two_texts_have_a_difference(before in "[ab\n\u{e9}]{0,60}", after in "[ab\n\u{e9}]{0,60}") {
            let (found, left_out) = layers(&of([&before, "", "", "", "", ""]), &of([&after, "", "", "", "", ""]), true);
            prop_assert_eq!(left_out, 0);
            for layer in &found {
                prop_assert_eq!(layer.state == DiffState::Same, before == after);
                let removed: String = lines_of(layer, "-");
                prop_assert!(removed.len() <= before.len() + 1);
            }
        }
    }

    fn lines_of(layer: &LayerDiff, sign: &str) -> String {
        let lines = layer.diff.iter().flat_map(|diff| diff.split_inclusive('\n'));
        lines.filter_map(|line| line.strip_prefix(sign)).collect()
    }
}
