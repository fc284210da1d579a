//! One holder's share of a shared resource. Pure. Used for an address and its connections, and for an account and the
//! bytes of its responses.

/// A holder may have one part in so many of what the others leave.
const PARTS: usize = 4;

/// The most that a holder may have: `each_max` while there is plenty, and less as `others` fill the resource, so that
/// the next holder finds some. At least one, as long as one is left.
pub(super) fn share(max: usize, others: usize, each_max: usize) -> usize {
    max.saturating_sub(others).div_ceil(PARTS).min(each_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_shrinks_as_the_others_grow() {
        let check = |max, others, each_max, expected| {
            assert_eq!(share(max, others, each_max), expected, "{max} {others} {each_max}");
        };
        check(1024, 0, 256, 256);
        check(1024, 0, 1000, 256);
        check(1024, 0, 10, 10);
        check(1024, 256, 256, 192);
        check(1024, 448, 256, 144);
        check(1024, 1020, 256, 1);
        check(1024, 1023, 256, 1);
        check(1024, 1024, 256, 0);
        check(1024, 2000, 256, 0);
        check(1, 0, 256, 1);
    }

    /// Holders that take as much as they may, one after the other.
    #[test]
    fn a_few_holders_leave_most_of_the_rest() {
        let left_by = |holders: usize| (0..holders).fold(1024, |left, _| left - share(1024, 1024 - left, 256));
        assert_eq!((left_by(4), left_by(10)), (324, 57));
        assert!(left_by(20) > 0);
    }
}
