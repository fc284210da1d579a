//! Parses `Retry-After` (RFC 9110, 10.2.3): seconds, or one of the three forms of an HTTP date.

use std::time::{Duration, SystemTime};

use domain::breaker::RESET_MAX;

/// The wait, at most [`RESET_MAX`]; a date in the past is no wait. `None` for an invalid value.
pub(super) fn parse(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // Only a number too large for u64 fails to parse here.
        let seconds = value.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(RESET_MAX));
    }
    let wait = httpdate::parse_http_date(value).ok()?.duration_since(now);
    Some(wait.unwrap_or_default().min(RESET_MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    fn now() -> SystemTime {
        datetime!(2026-11-20 09:53:23 UTC).into()
    }

    fn check(value: &str, seconds: Option<u64>) {
        assert_eq!(parse(value, now()), seconds.map(Duration::from_secs), "{value:?}");
    }

    #[test]
    fn reads_seconds_and_dates_and_caps_both() {
        check("5", Some(5));
        check(" 5 ", Some(5));
        check("0", Some(0));
        check("86400", Some(86_400));
        check("86401", Some(86_400));
        check("99999999999999999999999999", Some(86_400));
        check("Fri, 20 Nov 2026 09:53:53 GMT", Some(30));
        check("Friday, 20-Nov-26 09:53:53 GMT", Some(30));
        check("Fri Nov 20 09:53:53 2026", Some(30));
        check("Sun Nov  1 09:53:53 2026", Some(0));
        check("Fri, 20 Nov 2026 09:00:00 GMT", Some(0));
        check("Fri, 31 Dec 9999 23:59:59 GMT", Some(86_400));
        for neither in [
            "",
            "-5",
            "1.5",
            "5s",
            "soon",
            "Fri, 99 Nov 2026 09:53:53 GMT",
            "5, 6",
            "٥",
        ] {
            check(neither, None);
        }
    }

    proptest! {
        #[test]
        fn never_waits_longer_than_the_cap(value in ".{0,40}") {
            if let Some(wait) = parse(&value, now()) {
                prop_assert!(wait <= RESET_MAX);
            }
        }
    }
}
