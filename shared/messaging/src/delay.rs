//! Delays between attempts, with jitter, so that attempts that failed together are not retried together.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use domain::Backoff;

/// `delay` plus up to a quarter, never less: a caller may rely on the minimum.
pub(crate) fn spread(delay: Duration) -> Duration {
    delay + delay.mul_f64(random_fraction() / 4.0)
}

/// `base`, doubled with every attempt after the first, at most `max`; with jitter.
pub(crate) fn backoff(attempt: u32, base: Duration, max: Duration) -> Duration {
    spread(Backoff::new(base, max).after(attempt.saturating_sub(1)))
}

/// From 0 to 1. The standard library seeds its hashers at random, which is random enough for jitter.
fn random_fraction() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_shortened_and_grows_by_a_quarter_at_most() {
        for _ in 0..1000 {
            let delay = spread(Duration::from_secs(4));
            assert!(
                (Duration::from_secs(4)..=Duration::from_secs(5)).contains(&delay),
                "{delay:?}"
            );
        }
    }

    #[test]
    fn backoff_doubles_up_to_its_limit() {
        let (base, max) = (Duration::from_secs(1), Duration::from_secs(8));
        let check = |attempt: u32, seconds: u64| {
            let delay = backoff(attempt, base, max).as_secs_f64();
            let range = seconds as f64..=seconds as f64 * 1.25;
            assert!(range.contains(&delay), "attempt {attempt}: {delay}");
        };
        check(0, 1);
        check(1, 1);
        check(2, 2);
        check(3, 4);
        check(4, 8);
        check(40, 8);
    }
}
