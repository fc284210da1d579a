//! Choices from a seed. Not for secrets: the same seed gives the same choices.

/// SplitMix64: one number of state, the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// `purpose` separates the choices for different things: more choices for one do not change another's.
    pub(crate) fn new(seed: u64, purpose: &str) -> Dice {
        let mixed = purpose.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Dice(mixed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        assert!(end > 0, "there is something to choose from");
        usize::try_from(self.next() % end as u64).expect("below a usize")
    }

    /// Both ends included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// By weights.
    pub(crate) fn weighted<'a, T>(&mut self, from: &'a [T], weight: impl Fn(&T) -> u64) -> &'a T {
        let total: u64 = from.iter().map(&weight).sum();
        let mut left = self.next() % total;
        from.iter()
            .find(|one| {
                let here = weight(one);
                let found = left < here;
                left = left.saturating_sub(here);
                found
            })
            .expect("less than the sum of the weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_chooses_the_same() {
        let thrown = |seed, purpose| {
            let mut dice = Dice::new(seed, purpose);
            (0..8).map(|_| dice.next()).collect::<Vec<_>>()
        };
        assert_eq!(thrown(7, "faults"), thrown(7, "faults"));
        assert_ne!(thrown(7, "faults"), thrown(8, "faults"));
        assert_ne!(thrown(7, "faults"), thrown(7, "offers"));
    }

    #[test]
    fn weights_count() {
        let mut dice = Dice::new(1, "");
        let mut counts = [0; 3];
        for _ in 0..1_000 {
            counts[*dice.weighted(&[0, 1, 2], |of| [0, 1, 9][*of])] += 1;
        }
        assert_eq!(counts[0], 0);
        assert!(counts[1] > 50 && counts[2] > 800, "{counts:?}");
    }
}
