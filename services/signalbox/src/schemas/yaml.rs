//! JSON values as YAML, in block style. Every string is written in double quotes as in JSON, which every YAML 1.2 reader accepts,
//! so no string is read as a number, a date or `no`. Keys are not quoted where that is safe.

use std::fmt::Write;

use serde_json::Value;

/// A document that begins with a comment.
pub(super) fn document(comment: &str, value: &Value) -> String {
    let mut text = String::new();
    for line in comment.lines() {
        writeln!(text, "# {line}").expect(INFALLIBLE);
    }
    block(&mut text, value, 0);
    text
}

const INFALLIBLE: &str = "a String takes all that is written to it";

/// Writes a value that starts at the left margin on its own line.
fn block(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                write!(text, "{:indent$}{}:", "", key(name), indent = depth * 2).expect(INFALLIBLE);
                behind(text, value, depth);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                write!(text, "{:indent$}-", "", indent = depth * 2).expect(INFALLIBLE);
                behind(text, item, depth);
            }
        }
        scalar => writeln!(text, "{scalar}").expect(INFALLIBLE),
    }
}

/// Writes the value after `key:` or `-`: a scalar on the same line, anything else indented on the next line.
fn behind(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            text.push('\n');
            block(text, value, depth + 1);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            block(text, value, depth + 1);
        }
        // JSON and YAML write `{}`, `[]`, numbers, booleans, null and quoted strings alike.
        scalar => writeln!(text, " {scalar}").expect(INFALLIBLE),
    }
}

fn key(name: &str) -> String {
    let mut characters = name.chars();
    let plain = characters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
        // YAML 1.1 readers read these as booleans and null.
        && !["y", "n", "yes", "no", "on", "off", "true", "false", "null"]
            .contains(&name.to_ascii_lowercase().as_str());
    if plain {
        name.to_owned()
    } else {
        Value::from(name).to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_blocks_and_quotes_every_text() {
        let value = json!({
            "title": "no", "on": 1, "$ref": "#/a\nb", "empty": {}, "none": [], "list": [1, "2", {"a": true, "b": [null]}],
            "deep": {"er": {"still": "x"}}
        });
        assert_eq!(
            document("Generated.\nTwice.", &value),
            "# Generated.\n# Twice.\n\"$ref\": \"#/a\\nb\"\ndeep:\n  er:\n    still: \"x\"\nempty: {}\nlist:\n  - 1\n  - \"2\"\n  \
             -\n    a: true\n    b:\n      - null\nnone: []\n\"on\": 1\ntitle: \"no\"\n"
        );
    }
}
