//! How many partitions a replica should hold. Pure; every replica decides for itself, from the same census.

use crate::store::partitions::Census;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    Stay,
    /// Claim at most this many free partitions.
    Claim(usize),
    GiveUp(usize),
}

/// Plans an even share, rounded up, so that a new replica finds free partitions as soon as the others have checked. No
/// replica waits for another; a partition may be free for a moment.
pub fn plan(census: &Census, partitions: usize, held_max: usize) -> Plan {
    let share = partitions.div_ceil(census.replicas.max(1)).min(held_max);
    let held = census.mine.len();
    if held > share {
        Plan::GiveUp(held - share)
    } else {
        match census.free.min(share - held) {
            0 => Plan::Stay,
            some => Plan::Claim(some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::partitions::Lease;

    fn lease(partition: u16) -> Lease {
        Lease {
            partition,
            owner: uuid::Uuid::nil(),
            fence: 1,
        }
    }

    fn census(replicas: usize, mine: u16, free: usize) -> Census {
        Census {
            replicas,
            mine: (0..mine).map(lease).collect(),
            free,
        }
    }

    #[test]
    fn replicas_take_even_shares() {
        let check = |replicas, mine, free, expected| {
            assert_eq!(
                plan(&census(replicas, mine, free), 8, 8),
                expected,
                "{replicas} replicas, {mine} mine, {free} free"
            );
        };
        check(1, 0, 8, Plan::Claim(8));
        check(1, 8, 0, Plan::Stay);
        check(2, 8, 0, Plan::GiveUp(4));
        check(2, 0, 0, Plan::Stay);
        check(2, 0, 4, Plan::Claim(4));
        check(2, 4, 0, Plan::Stay);
        check(3, 4, 0, Plan::GiveUp(1));
        check(3, 3, 1, Plan::Stay);
        check(3, 2, 1, Plan::Claim(1));
        check(16, 1, 0, Plan::Stay);
        check(16, 0, 3, Plan::Claim(1));
        check(0, 0, 8, Plan::Claim(8)); // this one is not counted yet
        assert_eq!(plan(&census(1, 0, 8), 8, 3), Plan::Claim(3));
    }

    /// Replicas that check in turn converge, and every partition is read.
    #[test]
    fn shares_converge() {
        for replicas in 1..=10 {
            let mut held = vec![0_usize; replicas];
            held[0] = 8;
            for round in 0.. {
                assert!(round < 20, "{replicas} replicas do not converge: {held:?}");
                let mut rests = true;
                for n in 0..replicas {
                    let free = 8 - held.iter().sum::<usize>();
                    let mine = u16::try_from(held[n]).unwrap();
                    match plan(&census(replicas, mine, free), 8, 8) {
                        Plan::Stay => continue,
                        Plan::Claim(some) => held[n] += some,
                        Plan::GiveUp(some) => held[n] -= some,
                    }
                    rests = false;
                }
                if rests {
                    break;
                }
            }
            assert_eq!(held.iter().sum::<usize>(), 8, "{replicas} replicas: {held:?}");
        }
    }
}
