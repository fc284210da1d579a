//! Checks whether JSON from outside can be stored: Postgres cannot store a NUL in a text. The caller refuses the JSON,
//! and chooses the error.

use serde_json::Value;

/// The reader bounds JSON nesting, and so this recursion.
pub fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains('\0') || holds_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_nul_is_found_wherever_it_is() {
        assert!(!holds_nul(&json!({"a": ["b", 1, null, true, {"c": "\u{1}"}]})));
        assert!(holds_nul(&json!({"a": ["b", {"c": "\0"}]})));
        assert!(holds_nul(&json!([{"a\0": 1}])));
    }
}
