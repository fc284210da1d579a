//! What happened lately, by name: wrong keys of a host, connections of a key. In the memory of this replica.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

/// Names that are remembered. Where so many are active, a further one is not counted.
const NAMES_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct Recent {
    within: Duration,
    count_max: usize,
    /// The last ones, at most so many.
    times: HashMap<String, VecDeque<Instant>>,
}

impl Recent {
    pub(super) fn new(count_max: usize, within: Duration) -> Recent {
        Recent {
            within,
            count_max,
            times: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, name: &str, now: Instant) {
        if !self.times.contains_key(name) && self.times.len() >= NAMES_MAX {
            let within = self.within;
            self.times
                .retain(|_, times| times.back().is_some_and(|last| now - *last < within));
            if self.times.len() >= NAMES_MAX {
                return;
            }
        }
        let times = self.times.entry(name.to_owned()).or_default();
        times.push_back(now);
        if times.len() > self.count_max {
            times.pop_front();
        }
    }

    /// Whether the most happened within the time up to now.
    pub(super) fn is_full(&self, name: &str, now: Instant) -> bool {
        self.last(name).is_some_and(|(first, _)| now - first < self.within)
    }

    /// Whether the most happened within the time, and the last one less than that ago.
    pub(super) fn was_full(&self, name: &str, now: Instant) -> bool {
        self.last(name)
            .is_some_and(|(first, last)| last - first < self.within && now - last < self.within)
    }

    /// The first and the last of the most.
    fn last(&self, name: &str) -> Option<(Instant, Instant)> {
        let times = self.times.get(name).filter(|times| times.len() == self.count_max)?;
        Some((*times.front()?, *times.back()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_within_the_time_and_no_longer() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut recent = Recent::new(3, 60 * second);
        let mut add = |at: u32| recent.add("a", start + at * second);
        add(0);
        add(10);
        add(20);
        let check = |at: u32, is: bool, was: bool| {
            let now = start + at * second;
            assert_eq!((recent.is_full("a", now), recent.was_full("a", now)), (is, was), "{at}");
        };
        check(20, true, true);
        check(59, true, true);
        check(60, false, true);
        check(80, false, false);
        assert!(!recent.is_full("b", start));
    }

    #[test]
    fn names_have_a_limit() {
        let (start, minute) = (Instant::now(), Duration::from_secs(60));
        let mut recent = Recent::new(1, minute);
        for n in 0..NAMES_MAX + 5 {
            recent.add(&n.to_string(), start);
        }
        assert_eq!(recent.times.len(), NAMES_MAX);
        recent.add("later", start + minute);
        assert_eq!(recent.times.len(), 1);
    }
}
