//! Limits that an operator sets, each a whole number of its unit. Zero is never a limit: it could mean "at once",
//! "nothing" or "for ever". Where it can only mean "none", the type says so ([`CountOrNone`]).

use std::{fmt, num::NonZeroUsize, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, Unexpected, Visitor},
};

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident($number:ty), $min:literal to $max:expr, $unit:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
        pub struct $name($number);

        impl $name {
            /// For defaults, which are constants.
            ///
            /// # Panics
            /// Outside of the range, at compile time where it is used in a constant.
            pub const fn new(value: $number) -> $name {
                assert!(value as i64 >= $min && value as i64 <= $max);
                $name(value)
            }
            pub const fn get(self) -> $number {
                self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let range = Range { min: $min, max: $max, unit: $unit };
                deserializer.deserialize_u64(range).map(|value| $name(value as $number))
            }
        }
    )*};
}

limits! {
    /// A number of things, from 1 to what an `integer` of Postgres holds.
    Count(u32), 1 to 2_147_483_647, "";
    /// The same, or 0 for none of them.
    CountOrNone(u32), 0 to 2_147_483_647, "";
    /// A duration in milliseconds, from 1 to a day.
    Millis(u64), 1 to 86_400_000, " of milliseconds";
    /// A long duration in milliseconds, from 1 to a year.
    LongMillis(u64), 1 to 31_536_000_000, " of milliseconds";
    /// A duration in hours, from 1 to a hundred years.
    Hours(u64), 1 to 876_000, " of hours";
    /// A duration in days, from 1 to a hundred years.
    Days(u64), 1 to 36_500, " of days";
    /// A duration in seconds, from a minute to a day.
    Seconds(u64), 60 to 86_400, " of seconds";
    /// How deep branches of branches go.
    Depth(u32), 1 to 5, "";
    /// A size in bytes, from 1 to 1 TiB.
    Bytes(u64), 1 to 1_099_511_627_776, " of bytes";
    /// The size of an artifact in bytes, from 1 to 15 MB, which its table takes.
    ArtifactBytes(u64), 1 to 15_000_000, " of bytes";
}

impl Count {
    pub const fn non_zero(self) -> NonZeroUsize {
        NonZeroUsize::new(self.usize()).expect("a count is at least 1")
    }
    pub const fn usize(self) -> usize {
        self.0 as usize
    }
    pub const fn i32(self) -> i32 {
        self.0 as i32
    }
}

impl Millis {
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
    pub const fn i64(self) -> i64 {
        self.0 as i64
    }
}

impl LongMillis {
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Hours {
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0 * 60 * 60)
    }
}

impl Days {
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0 * 24 * 60 * 60)
    }
}

impl Seconds {
    pub const fn i64(self) -> i64 {
        self.0 as i64
    }
}

impl Depth {
    pub const fn i32(self) -> i32 {
        self.0 as i32
    }
}

impl Bytes {
    pub const fn usize(self) -> usize {
        self.0 as usize
    }
    pub const fn i64(self) -> i64 {
        self.0 as i64
    }
}

impl ArtifactBytes {
    pub const fn usize(self) -> usize {
        self.0 as usize
    }
}

/// Accepts a whole number of a range; the error for any other value names the range.
struct Range {
    min: u64,
    max: u64,
    unit: &'static str,
}

impl Visitor<'_> for Range {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number{} from {} to {}", self.unit, self.min, self.max)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        if (self.min..=self.max).contains(&value) {
            return Ok(value);
        }
        Err(E::invalid_value(Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(value), &self)),
        }
    }
}
