//! A time on the wire: RFC 3339, UTC. A parsed one can be stored and printed: an offset may move the last second of the
//! year 9999 out of the range that this type, Postgres and RFC 3339 share.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use time::{OffsetDateTime, UtcOffset, format_description::well_known::Rfc3339};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Timestamp(
    #[serde(serialize_with = "time::serde::rfc3339::serialize")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub OffsetDateTime,
);

impl Timestamp {
    /// A time from outside, in UTC. `None` outside of the years 1 to 9999.
    pub fn checked(moment: OffsetDateTime) -> Option<Timestamp> {
        let moment = moment.checked_to_offset(UtcOffset::UTC)?;
        (1..=9999).contains(&moment.year()).then_some(Timestamp(moment))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let moment = time::serde::rfc3339::deserialize(deserializer)?;
        Timestamp::checked(moment).ok_or_else(|| D::Error::custom("a moment outside of the years 1 to 9999, in UTC"))
    }
}

crate::columns::column!(Timestamp: plain OffsetDateTime);

/// For our own times: from a clock, or from the database.
impl From<OffsetDateTime> for Timestamp {
    fn from(moment: OffsetDateTime) -> Self {
        Timestamp(moment.to_offset(UtcOffset::UTC))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            &self
                .0
                .format(&Rfc3339)
                .expect("a UTC moment between years 0 and 9999 has an RFC 3339 form"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_cannot_be_stored_is_refused() {
        let check = |text: &str, expected: Option<&str>| {
            let read = serde_json::from_value::<Timestamp>(text.into()).ok();
            assert_eq!(read.map(|read| read.to_string()).as_deref(), expected, "{text}");
        };
        check("2026-11-20T10:00:00+01:00", Some("2026-11-20T09:00:00Z"));
        check("9999-12-31T23:59:59Z", Some("9999-12-31T23:59:59Z"));
        check("9999-12-31T23:59:59+23:59", Some("9999-12-31T00:00:59Z"));
        check("9999-12-31T23:59:59-00:01", None);
        check("9999-12-31T23:59:59-23:59", None);
        check("0001-01-01T00:00:00Z", Some("0001-01-01T00:00:00Z"));
        check("0001-01-01T00:00:00+00:01", None);
        check("0000-01-01T00:00:00Z", None);
        check("0000-01-01T00:00:00+23:59", None);
        check("2026-13-01T00:00:00Z", None);
        check("2026-11-20", None);
    }
}
