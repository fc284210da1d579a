//! What JSON from outside can be kept: Postgres keeps no NUL in a text. Who takes JSON refuses it with this; what it is
//! refused as is theirs to say.

use serde_json::Value;

/// JSON nesting is bounded by its reader, so this recursion is too.
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
