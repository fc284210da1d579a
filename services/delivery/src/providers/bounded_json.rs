//! Parses JSON from outside without letting a small text become a large tree. A value costs about a hundred bytes of
//! memory, and `[[],[],…` needs three bytes for one: so values are counted before they are made. Depth is bounded by
//! serde_json itself (128). Among equal keys the last one wins; a number too large for its type reads as absent.

use serde_json::Value;

/// Enough for an answer that echoes a hundred tools with their schemas.
const VALUES_MAX: usize = 100_000;

#[derive(Debug, thiserror::Error)]
pub(super) enum NotJson {
    #[error("not JSON")]
    Syntax(#[source] serde_json::Error),
    #[error("more than {VALUES_MAX} values")]
    TooManyValues,
}

pub(super) fn parse(text: &[u8]) -> Result<Value, NotJson> {
    if values_at_most(text) > VALUES_MAX {
        return Err(NotJson::TooManyValues);
    }
    serde_json::from_slice(text).map_err(NotJson::Syntax)
}

/// An upper bound of the values in `text`: each but the first has a comma, a colon or an opening bracket before it.
fn values_at_most(text: &[u8]) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for &byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b':' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_depth_and_number() {
        assert!(parse(b"{\"a\": [1, 2, {\"b\": null}]}").is_ok());
        assert!(matches!(
            parse("[".repeat(200_000).as_bytes()),
            Err(NotJson::TooManyValues)
        ));
        assert!(
            matches!(parse("[".repeat(50_000).as_bytes()), Err(NotJson::Syntax(_))),
            "depth"
        );
        let commas_in_a_string = format!("\"{}\"", "\\\",:[{".repeat(100_000));
        assert!(parse(commas_in_a_string.as_bytes()).is_ok());
        assert_eq!(parse(b"{\"a\":1,\"a\":2}").unwrap()["a"], 2);
        assert!(parse(b"1e999").is_err());
        assert_eq!(parse(b"99999999999999999999").unwrap().as_u64(), None);
    }

    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
            Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
        }
    }

    proptest! {
        #[test]
        fn never_undercounts(text in "[\\[\\]{},:\"\\\\a1 ]{0,40}") {
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                prop_assert!(count(&value) <= values_at_most(text.as_bytes()));
            }
        }
    }
}
