//! `signalbox diff`: what differs between two turns.

use std::{fmt::Write as _, process::ExitCode};

use api::diff::{Change, Diff, ToolsDiff};
use serde_json::Value;

use crate::{
    cli::DiffArgs,
    client::{Client, read_as},
    print::show,
    table::Table,
    text::{lines, one_line},
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
            let change = format!("{before} -> {after}");
            writeln!(text, "{name:<10}{}", one_line(&change, VALUE_CHARS_MAX)).expect(WRITES);
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
            write!(text, "\n--- {0} before\n+++ {0} after\n{1}", layer.layer, lines(diff)).expect(WRITES);
        }
    }
    if diff.lines_left_out > 0 {
        writeln!(text, "\n[{} more lines]", diff.lines_left_out).expect(WRITES);
    }
    text
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
            "context": {"before": null, "after": {"used": "assembled"}}, "provider": null, "usage": null, "lines_left_out": 2,
            "tools": {"added": ["no_reply"], "removed": ["task_status"], "schemas_changed": true}});
        assert_eq!(
            shown(&read_as(&diff).unwrap()),
            "LAYER         STATE    BEFORE  AFTER\ninstructions  same     3       3\ninput         changed  4       12\n\
             context   null -> {\"used\":\"assembled\"}\ntools     +no_reply -task_status other schemas\n\n\
             --- input before\n+++ input after\n@@ -1 +1 @@\n-a\n+[2Jb\n\n[2 more lines]\n"
        );
    }
}
