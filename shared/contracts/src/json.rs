//! Parses JSON from outside, and limits it before a tree is built. A value costs about a hundred bytes of memory, an
//! object of one field six hundred, and `{"":0},` is only seven bytes for both. So depth and values are counted first,
//! without building any. Of equal keys the last one wins; a number too large for its type counts as absent.
//!
//! Messages between services are parsed into their own types instead, which bound them.

use serde_json::Value;

/// No legitimate message is nested as deep, and code that walks a value may recurse.
pub const DEPTH_MAX: usize = 64;
/// Enough for a provider's answer that echoes a hundred tools with their schemas; at most some twenty MiB of memory.
pub const VALUES_MAX: usize = 100_000;

/// The texts are shown to the sender, so they are complete.
#[derive(Debug, thiserror::Error)]
pub enum NotJson {
    #[error("not JSON: {0}")]
    Syntax(serde_json::Error),
    #[error("nested deeper than {DEPTH_MAX}, from byte {at} on")]
    TooDeep { at: usize },
    #[error("more than {VALUES_MAX} values, from byte {at} on")]
    TooManyValues { at: usize },
}

/// Parses one value. The caller limits the text's length.
pub fn read(text: &[u8]) -> Result<Value, NotJson> {
    bounds_check(text, DEPTH_MAX)?;
    serde_json::from_slice(text).map_err(NotJson::Syntax)
}

/// Whether no object of the text has two fields with one name, of which a reader may see one and another reader the other.
/// `value`: the text as [`read`] gives it.
pub fn names_are_unique(text: &[u8], value: &Value) -> bool {
    let (mut fields, mut in_string, mut escaped) = (0_usize, false, false);
    for &byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b':' if !in_string => fields += 1,
            _ => {}
        }
    }
    fields == fields_of(value)
}

fn fields_of(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.len() + fields.values().map(fields_of).sum::<usize>(),
        Value::Array(values) => values.iter().map(fields_of).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Whether a text of our own can be nested so many levels down in another, and still be parsed.
pub fn fits_within(text: &[u8], levels: usize) -> bool {
    bounds_check(text, DEPTH_MAX.saturating_sub(levels)).is_ok()
}

/// An upper bound of the number of values in `text`: each but the first has a comma, a colon or an opening bracket
/// before it. For a text that is not JSON the result is arbitrary, and the parser fails.
fn bounds_check(text: &[u8], depth_max: usize) -> Result<(), NotJson> {
    let (mut values, mut depth, mut in_string, mut escaped) = (1_usize, 0_usize, false, false);
    for (at, &byte) in text.iter().enumerate() {
        if escaped {
            escaped = false;
            continue;
        }
        match byte {
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                values += 1;
                depth += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
        if depth > depth_max {
            return Err(NotJson::TooDeep { at });
        }
        if values > VALUES_MAX {
            return Err(NotJson::TooManyValues { at });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_depth_and_number() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(b"{\"a\": [1, 2, {\"b\": null}]}").is_ok());
        assert!(read(nested(DEPTH_MAX).as_bytes()).is_ok());
        let too_deep = |text: &str| matches!(read(text.as_bytes()), Err(NotJson::TooDeep { at: DEPTH_MAX }));
        assert!(too_deep(&nested(DEPTH_MAX + 1)) && too_deep(&"[".repeat(200_000)));
        assert!(fits_within(nested(DEPTH_MAX - 1).as_bytes(), 1) && !fits_within(nested(DEPTH_MAX).as_bytes(), 1));
        let many = format!("[{}0]", "0,".repeat(VALUES_MAX));
        assert!(matches!(read(many.as_bytes()), Err(NotJson::TooManyValues { .. })));
        let brackets_in_a_string = format!("\"{}\"", "\\\",:[{".repeat(100_000));
        assert!(read(brackets_in_a_string.as_bytes()).is_ok());
        assert_eq!(read(b"{\"a\":1,\"a\":2}").unwrap()["a"], 2);
        assert!(matches!(read(b"1e999"), Err(NotJson::Syntax(_))));
        assert_eq!(read(b"99999999999999999999").unwrap().as_u64(), None);
    }

    fn count(value: &Value) -> (usize, usize) {
        let inner: Vec<(usize, usize)> = match value {
            Value::Array(items) => items.iter().map(count).collect(),
            Value::Object(fields) => fields.values().map(count).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return (1, 0),
        };
        let values = 1 + inner.iter().map(|(values, _)| values).sum::<usize>();
        (values, 1 + inner.iter().map(|(_, depth)| *depth).max().unwrap_or(0))
    }

    proptest! {
        #[test]
        fn what_is_read_is_within_the_bounds(text in "[\\[\\]{},:\"\\\\a1 ]{0,40}") {
            if let Ok(value) = read(text.as_bytes()) {
                let (values, depth) = count(&value);
                prop_assert!(values <= VALUES_MAX && depth <= DEPTH_MAX);
            }
        }
    }
}
