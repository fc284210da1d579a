//! Whole numbers with a least value, checked when they are parsed; their schema declares the same range.

use std::borrow::Cow;

use derive_more::Into;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A whole number from `MIN`; JSON writes one as `3` or as `3.0`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Into, Serialize, Deserialize)]
#[serde(try_from = "f64")]
pub struct Whole<const MIN: i32>(i32);

impl<const MIN: i32> TryFrom<f64> for Whole<MIN> {
    type Error = String;
    #[expect(clippy::cast_possible_truncation, reason = "a whole number that fits")]
    fn try_from(number: f64) -> Result<Self, String> {
        let fits = (f64::from(MIN)..=f64::from(i32::MAX)).contains(&number);
        (fits && number.fract() == 0.0)
            .then_some(Whole(number as i32))
            .ok_or_else(|| format!("expected a whole number from {MIN} to {}", i32::MAX))
    }
}

impl<const MIN: i32> JsonSchema for Whole<MIN> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("Whole_{MIN}").into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "format": "int32", "minimum": MIN, "maximum": i32::MAX})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_has_two_spellings_and_one_range() {
        let read = |json: &str| serde_json::from_str::<Whole<1>>(json).map(i32::from).ok();
        assert_eq!(
            ["3", "3.0", "1", "2147483647"].map(read),
            [Some(3), Some(3), Some(1), Some(i32::MAX)]
        );
        assert_eq!(["0", "3.5", "2147483648", "-1", "\"3\"", "1e300"].map(read), [None; 6]);
    }
}
