//! When a failed attempt is followed by another one. Pure; randomness is a parameter.

use std::time::Duration;

use super::smtp::Class;

/// Before each attempt; the first one is due at once.
const PAUSES_S: [u32; 6] = [0, 2, 10, 60, 300, 1_800];
/// A pause is longer or shorter by up to this part of it, so that what failed together does not come back together.
const SPREAD: f64 = 0.2;

/// What follows a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Again(Duration),
    Dead,
}

/// `attempts`: so many were made. `random`: from 0 to 1.
pub fn next(attempts: i32, class: Class, random: f64) -> Next {
    let pause = usize::try_from(attempts).ok().and_then(|made| PAUSES_S.get(made));
    match (class, pause) {
        (Class::Refused, _) | (_, None) => Next::Dead,
        (Class::Busy | Class::Login | Class::Timeout | Class::Unreachable, Some(pause)) => {
            let part = 1.0 + SPREAD * (2.0 * random.clamp(0.0, 1.0) - 1.0);
            Next::Again(Duration::from_secs_f64(f64::from(*pause) * part))
        }
    }
}

/// Whether so many attempts were begun that another one would be too much: their senders ended before they said how the attempt ended.
pub fn is_spent(begun: i32) -> bool {
    usize::try_from(begun).is_ok_and(|begun| begun > PAUSES_S.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_followed_by_longer_and_longer_pauses_and_then_by_none() {
        let again = |ms| Next::Again(Duration::from_millis(ms));
        let check = |attempts, class, random: f64, expected: Next| {
            assert_eq!(next(attempts, class, random), expected, "{attempts} {class:?} {random}");
        };
        for class in [Class::Busy, Class::Unreachable, Class::Timeout, Class::Login] {
            check(1, class, 0.5, again(2_000));
            check(2, class, 0.5, again(10_000));
            check(3, class, 0.5, again(60_000));
            check(4, class, 0.5, again(300_000));
            check(5, class, 0.5, again(1_800_000));
            check(6, class, 0.5, Next::Dead);
            check(7, class, 0.5, Next::Dead);
        }
        check(1, Class::Busy, 0.0, again(1_600));
        check(1, Class::Busy, 1.0, again(2_400));
        check(1, Class::Refused, 0.5, Next::Dead);
        assert!(!is_spent(6) && is_spent(7));
    }
}
