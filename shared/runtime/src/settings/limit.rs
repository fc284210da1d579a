//! Numbers that a setting may be. Zero is never a limit: it would mean "at once", "nothing" or "for ever" depending on
//! who reads it.

use std::time::Duration;

use serde::Deserialize;

/// The longest duration that a setting may be: a day.
const MILLIS_MAX: u64 = 24 * 60 * 60 * 1000;
const COUNT_MAX: u64 = u32::MAX as u64;

/// A duration in milliseconds, from 1 to a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "u64")]
pub struct Millis(u64);

impl Millis {
    /// For defaults, which are constants.
    ///
    /// # Panics
    /// Outside of the range, at compile time where it is used in a constant.
    pub const fn new(millis: u64) -> Millis {
        assert!(millis >= 1 && millis <= MILLIS_MAX);
        Millis(millis)
    }
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Millis {
    type Error = String;
    fn try_from(millis: u64) -> Result<Self, String> {
        in_range(millis, MILLIS_MAX, "milliseconds").map(Millis)
    }
}

/// A number of things or bytes, at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "u64")]
pub struct Count(u32);

impl Count {
    /// For defaults, which are constants.
    ///
    /// # Panics
    /// For zero, at compile time where it is used in a constant.
    pub const fn new(count: u32) -> Count {
        assert!(count >= 1);
        Count(count)
    }
    pub const fn get(self) -> u32 {
        self.0
    }
    pub const fn usize(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u64> for Count {
    type Error = String;
    fn try_from(count: u64) -> Result<Self, String> {
        let count = in_range(count, COUNT_MAX, "")?;
        Ok(Count(u32::try_from(count).expect("the range ends where u32 does")))
    }
}

fn in_range(value: u64, max: u64, unit: &str) -> Result<u64, String> {
    if (1..=max).contains(&value) {
        Ok(value)
    } else {
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(" {unit}")
        };
        Err(format!("expected 1 to {max}{unit}, found {value}"))
    }
}
