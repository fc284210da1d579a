//! JSON values as YAML, in block style. Every string is written in double quotes as in JSON, which every YAML 1.2 reader accepts,
//! so no string is read as a number, a date or `no`. Keys are not quoted where that is safe.

use serde_json::Value;

/// A document that begins with a comment.
pub(super) fn document(comment: &str, value: &Value) -> String {
    let mut text: String = comment.lines().map(|line| format!("# {line}\n")).collect();
    block(&mut text, value, "");
    text
}

/// Writes the entries of an object or a list, each from a line of its own on.
fn block(text: &mut String, value: &Value, indent: &str) {
    let entries: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (key(name) + ":", value)).collect(),
        Value::Array(items) => items.iter().map(|item| ("-".to_owned(), item)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    for (head, value) in entries {
        let is_block = match value {
            Value::Object(fields) => !fields.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        };
        if is_block {
            *text += &format!("{indent}{head}\n");
            block(text, value, &format!("{indent}  "));
        } else {
            // JSON and YAML write `{}`, `[]`, numbers, booleans, null and quoted strings alike.
            *text += &format!("{indent}{head} {value}\n");
        }
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
