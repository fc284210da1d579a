//! `signalbox diff`: what differs between two turns.

use std::{collections::BTreeSet, fmt::Write as _, process::ExitCode};

use api::diff::{Change, Diff, ToolsDiff};
use contracts::quote::inert;
use serde_json::{Map, Value};

use crate::{
    cli::DiffArgs,
    client::{Client, read_as},
    print::show,
    table::Table,
    text::one_line,
};

pub(crate) async fn run(args: &DiffArgs, json: bool) -> anyhow::Result<ExitCode> {
    let client = args.of.access.client()?;
    let turns = (args.before.to_string(), args.after.to_string());
    let diff = of(&client, &args.of.account, (&turns.0, &turns.1), args.text).await?;
    show(json, &diff, |diff| Ok(shown(&read_as(diff)?)))
}

/// What differs between two turns of an account. `with_texts`: in their texts, too.
pub(super) async fn of(
    client: &Client,
    account: &str,
    (before, after): (&str, &str),
    with_texts: bool,
) -> anyhow::Result<Value> {
    let path = ["api", "orgs", account, "turns", before, "diff"];
    let text = if with_texts { "true" } else { "false" };
    Ok(client.get(&path, &[("with", after), ("text", text)]).await?)
}

const VALUE_CHARS_MAX: usize = 200;
/// Of one value on one side of a change.
const SIDE_CHARS_MAX: usize = 80;

pub(super) fn shown(diff: &Diff) -> String {
    let mut table = Table::new(&["LAYER", "STATE", "BEFORE", "AFTER"]);
    for layer in &diff.layers {
        let bytes = [layer.bytes_before, layer.bytes_after].map(|bytes| bytes.to_string());
        table.row([&layer.layer, layer.state.as_str(), &bytes[0], &bytes[1]]);
    }
    let mut text = table.render("no texts");
    for (name, change) in [
        ("context", &diff.context),
        ("provider", &diff.provider),
        ("usage", &diff.usage),
    ] {
        if let Some(Change { before, after }) = change {
            writeln!(text, "{name:<10}{}", differing(before, after)).expect(WRITES);
        }
    }
    if let Some(ToolsDiff {
        added,
        removed,
        schemas_changed,
    }) = &diff.tools
    {
        let added = added.iter().map(|name| format!("+{name}"));
        let removed = removed.iter().map(|name| format!("-{name}"));
        let mut words: Vec<String> = added.chain(removed).collect();
        words.extend(schemas_changed.then(|| "other schemas".to_owned()));
        writeln!(text, "{:<10}{}", "tools", one_line(&words.join(" "), VALUE_CHARS_MAX)).expect(WRITES);
    }
    for layer in &diff.layers {
        if let Some(diff) = &layer.diff {
            let layer = one_line(&layer.layer, 32);
            // Each line of a diff begins with a sign, so none passes for the heading.
            write!(text, "\n== {layer}\n{}", inert(diff)).expect(WRITES);
        }
    }
    if diff.lines_left_out > 0 {
        writeln!(text, "\n[{} more lines]", diff.lines_left_out).expect(WRITES);
    }
    text
}

/// The two values; of objects, only the fields that differ. What is null has no fields.
fn differing(before: &Value, after: &Value) -> String {
    let change = |before: &Value, after: &Value| format!("{} -> {}", side(before), side(after));
    let empty = Map::new();
    let fields = |value, other: &Value| match value {
        &Value::Null if other.is_object() => Some(&empty),
        value => value.as_object(),
    };
    let (Some(old), Some(new)) = (fields(before, after), fields(after, before)) else {
        return change(before, after);
    };
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let field = |name: &String| {
        let [old, new] = [old, new].map(|of| of.get(name).unwrap_or(&Value::Null));
        (old != new).then(|| format!("{} {}", one_line(name, SIDE_CHARS_MAX), change(old, new)))
    };
    names.into_iter().filter_map(field).collect::<Vec<_>>().join(", ")
}

fn side(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => one_line(text, SIDE_CHARS_MAX),
        other => one_line(&other.to_string(), SIDE_CHARS_MAX),
    }
}

const WRITES: &str = "writing to a String cannot fail";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shows_layers_and_texts() {
        let id = "0190b5a8-0000-7000-8000-000000000001";
        let diff = json!({"turn": id, "with": id, "layers": [
                {"layer": "instructions", "state": "same", "bytes_before": 3, "bytes_after": 3, "diff": null},
                {"layer": "input", "state": "changed", "bytes_before": 4, "bytes_after": 12,
                 "diff": "@@ -1 +1 @@\n-a\n+\u{1b}[2Jb\n"}],
            "context": {"before": null, "after": {"used": "assembled", "reason": null}}, "provider": null, "usage": null,
            "lines_left_out": 2,
            "tools": {"added": ["no_reply"], "removed": ["task_status"], "schemas_changed": true}});
        assert_eq!(
            shown(&read_as(&diff).unwrap()),
            "LAYER         STATE    BEFORE  AFTER\ninstructions  same     3       3\ninput         changed  4       12\n\
             context   used none -> assembled\ntools     +no_reply -task_status other schemas\n\n\
             == input\n@@ -1 +1 @@\n-a\n+\\u{1b}[2Jb\n\n[2 more lines]\n"
        );
    }

    /// Behind its sign, a line of a text may hold a heading, and what moves the cursor.
    #[test]
    fn no_text_passes_for_a_heading() {
        let id = "0190b5a8-0000-7000-8000-000000000001";
        let layer = |name: &str| {
            json!({"layer": name, "state": "changed", "bytes_before": 1, "bytes_after": 1, "diff":
                "@@ -1,3 +1,3 @@\n == reply\n--- reply before\n-== reply\n+++ reply after\n+a\r== reply\u{1b}[2J\n\\ No newline at end of file\n"})
        };
        let diff = json!({"turn": id, "with": id, "layers": [layer("input"), layer("reply\n== notes")], "context": null,
            "provider": null, "usage": null, "lines_left_out": 0, "tools": null});
        let text = shown(&read_as(&diff).unwrap());
        let (_, diffs) = text.split_once("\n\n").unwrap();
        let headings: Vec<&str> = diffs
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with([' ', '-', '+', '@', '\\']))
            .collect();
        assert_eq!(headings, ["== input", "== reply == notes"], "{text}");
        assert_eq!(diffs.matches("\n+a\\u{d}== reply\\u{1b}[2J\n").count(), 2, "{text}");
    }

    #[test]
    fn shows_only_the_fields_that_differ() {
        let check = |before: Value, after: Value, expected: &str| assert_eq!(differing(&before, &after), expected);
        let context = |used: &str, thread: u8, more: Value| {
            let from = "r".repeat(200);
            let mut context =
                json!({"asked": "continue", "base_sha256": null, "from": from, "used": used, "thread": thread});
            context
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            context
        };
        let (one, none) = (context("continue", 1, json!({})), json!({}));
        check(one.clone(), context("continue", 3, none.clone()), "thread 1 -> 3");
        let lost = json!({"reason": "thread_lost", "unconfirmed": null});
        check(
            one.clone(),
            context("assembled", 2, lost),
            "reason none -> thread_lost, thread 1 -> 2, used continue -> assembled",
        );
        check(
            json!({"details": {"cached_tokens": 1}, "total_tokens": 7}),
            json!({"details": {"cached_tokens": 2}}),
            "details {\"cached_tokens\":1} -> {\"cached_tokens\":2}, total_tokens 7 -> none",
        );
        check(json!("default"), json!("ot\u{1b}[2Jher"), "default -> ot [2Jher");
        check(json!(null), json!(7), "none -> 7");
        let long = "x".repeat(90);
        check(json!({"a": long}), none, &format!("a {}… -> none", "x".repeat(79)));
    }
}
