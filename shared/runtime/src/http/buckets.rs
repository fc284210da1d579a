//! Token buckets for any number of names in a fixed amount of memory. Knows neither requests nor clocks.
//!
//! A bucket is one number, the time at which it will be full again (GCRA), so a full bucket need not be stored. The
//! table has sets of a few slots each. A name belongs to one set, by a hash with a secret seed, and a new name takes
//! the slot that is free or will be free soonest. A client with a million names evicts only its own buckets, which are
//! nearly full, and not the nearly empty ones of others.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

const PLACES_PER_SET: usize = 8;

/// The rate and the burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) per_second: u32,
    /// The tokens that an idle name may take at once; at least 1.
    pub(super) burst: u32,
}

#[derive(Debug)]
pub(super) struct Buckets {
    sets: Vec<Mutex<[Bucket; PLACES_PER_SET]>>,
    hasher: RandomState,
    begun: Instant,
    interval_ns: u64,
    /// How far a bucket's time may lie ahead of now: the burst without the requested token.
    ahead_ns_max: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// The name's hash. Two names that share all 64 bits share a bucket; a client cannot cause it.
    name: u64,
    /// Nanoseconds after `begun`; in the past, the bucket is full and the place is free.
    full_at_ns: u64,
}

impl Buckets {
    /// Room for `names_max` names, rounded up.
    pub(super) fn new(rate: Rate, names_max: usize, now: Instant) -> Buckets {
        let sets = names_max.div_ceil(PLACES_PER_SET).max(1);
        let interval_ns = 1_000_000_000 / u64::from(rate.per_second.max(1));
        Buckets {
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            begun: now,
            interval_ns,
            ahead_ns_max: interval_ns * u64::from(rate.burst.saturating_sub(1)),
        }
    }

    /// Takes a token, or returns how long until there is one.
    pub(super) fn take(&self, name: &impl Hash, now: Instant) -> Result<(), Duration> {
        let name = self.hasher.hash_one(name);
        let now_ns = u64::try_from(now.saturating_duration_since(self.begun).as_nanos()).unwrap_or(u64::MAX);
        let sets = u64::try_from(self.sets.len()).expect("a usize is no longer than a u64");
        let set = usize::try_from(name % sets).expect("below a usize");
        let mut places = self.sets[set].lock();
        let known = places.iter().position(|place| place.name == name);
        let at = known.unwrap_or_else(|| {
            let soonest = (0..PLACES_PER_SET).min_by_key(|&at| places[at].full_at_ns);
            soonest.expect("a set has places")
        });
        let full_at_ns = known.map_or(now_ns, |at| places[at].full_at_ns.max(now_ns));
        let ahead_ns = full_at_ns - now_ns;
        if ahead_ns > self.ahead_ns_max {
            return Err(Duration::from_nanos(ahead_ns - self.ahead_ns_max));
        }
        places[at] = Bucket {
            name,
            full_at_ns: full_at_ns.saturating_add(self.interval_ns),
        };
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.sets.capacity() * size_of::<Mutex<[Bucket; PLACES_PER_SET]>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 2,
        burst: 3,
    };

    #[test]
    fn a_bucket_empties_and_fills_again() {
        let now = Instant::now();
        let buckets = Buckets::new(RATE, 64, now);
        let at = |millis: u64| now + Duration::from_millis(millis);
        for _ in 0..3 {
            assert_eq!(buckets.take(&"a", at(0)), Ok(()));
        }
        assert_eq!(buckets.take(&"a", at(0)), Err(Duration::from_millis(500)));
        assert_eq!(
            buckets.take(&"a", at(400)),
            Err(Duration::from_millis(100)),
            "asking costs nothing"
        );
        assert_eq!(buckets.take(&"b", at(400)), Ok(()), "another's is full");
        assert_eq!(buckets.take(&"a", at(500)), Ok(()));
        assert!(buckets.take(&"a", at(500)).is_err());
        for _ in 0..3 {
            assert_eq!(buckets.take(&"a", at(60_000)), Ok(()), "never more than the burst");
        }
        assert!(buckets.take(&"a", at(60_000)).is_err());
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing_away() {
        let now = Instant::now();
        let buckets = Buckets::new(RATE, 64, now + Duration::from_secs(10));
        for _ in 0..3 {
            assert_eq!(buckets.take(&"a", now), Ok(()));
        }
        assert!(buckets.take(&"a", now).is_err());
    }

    /// A million made-up names cost no memory and do not reset the bucket of an active name.
    #[test]
    fn a_million_names_fit_and_reset_no_bucket() {
        let now = Instant::now();
        let buckets = Buckets::new(RATE, 4_096, now);
        let before = buckets.bytes();
        for _ in 0..3 {
            buckets.take(&"held", now).unwrap();
        }
        for made_up in 0..1_000_000_u32 {
            let _ = buckets.take(&made_up, now);
        }
        assert!(buckets.take(&"held", now).is_err());
        assert_eq!(buckets.bytes(), before);
        assert!(before <= 4_096 * 24, "{before}");
    }
}
