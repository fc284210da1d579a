//! A queue that several owners share: the next entry is of the owner that has had the least, and each owner's entries keep their
//! order. What an entry takes is its cost. In memory; the caller bounds it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::Hash,
};

#[derive(Clone, Debug)]
pub struct Turns<K, V> {
    /// Owners with entries: what they have had, and since when they wait, in turns.
    turn: BTreeSet<(u64, u64, K)>,
    /// None of them is empty.
    entries: HashMap<K, VecDeque<(u64, V)>>,
    /// What the owner of the last entry had had. A newcomer begins there: nobody saves turns up.
    had: u64,
    turns: u64,
}

impl<K, V> Default for Turns<K, V> {
    fn default() -> Turns<K, V> {
        Turns {
            turn: BTreeSet::new(),
            entries: HashMap::new(),
            had: 0,
            turns: 0,
        }
    }
}

impl<K: Clone + Ord + Hash, V> Turns<K, V> {
    pub fn push(&mut self, owner: K, cost: usize, entry: V) {
        let entries = self.entries.entry(owner).or_insert_with_key(|owner| {
            self.turns += 1;
            self.turn.insert((self.had, self.turns, owner.clone()));
            VecDeque::new()
        });
        entries.push_back((cost as u64, entry));
    }

    /// The oldest entry of the owner whose turn it is.
    pub fn pop(&mut self) -> Option<(K, V)> {
        let (had, _, owner) = self.turn.pop_first()?;
        let entries = self.entries.get_mut(&owner)?;
        let (cost, entry) = entries.pop_front()?;
        self.had = had;
        if entries.is_empty() {
            self.entries.remove(&owner);
        } else {
            self.turns += 1;
            self.turn.insert((had + cost, self.turns, owner.clone()));
        }
        Some((owner, entry))
    }

    pub fn is_empty(&self) -> bool {
        self.turn.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut Turns<&'static str, i32>) -> Vec<(&'static str, i32)> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn owners_take_turns_and_keep_their_order() {
        let mut queue = Turns::default();
        for entry in 0..4 {
            queue.push("large", 1, entry);
        }
        queue.push("small", 1, 4);
        queue.push("other", 1, 5);
        assert_eq!(queue.pop(), Some(("large", 0)));
        queue.push("small", 1, 6);
        let rest = [
            ("small", 4),
            ("other", 5),
            ("large", 1),
            ("small", 6),
            ("large", 2),
            ("large", 3),
        ];
        assert_eq!(all(&mut queue), rest);
        assert!(queue.is_empty() && queue.entries.is_empty());
    }

    /// Ten small entries take less than one large one.
    #[test]
    fn a_turn_is_measured_by_what_it_takes() {
        let mut queue = Turns::default();
        for entry in 0..3 {
            queue.push("large", 256, entry);
        }
        for entry in 10..20 {
            queue.push("small", 1, entry);
        }
        assert_eq!(queue.pop(), Some(("large", 0)));
        let then: Vec<i32> = all(&mut queue).into_iter().map(|(_, entry)| entry).collect();
        assert_eq!(then, [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 1, 2]);
    }

    #[test]
    fn who_comes_later_has_no_turns_saved_up() {
        let mut queue = Turns::default();
        for entry in 0..100 {
            queue.push("first", 10, entry);
        }
        for _ in 0..50 {
            queue.pop();
        }
        for entry in 0..100 {
            queue.push("second", 10, entry);
        }
        let next: Vec<&str> = all(&mut queue).into_iter().take(20).map(|(owner, _)| owner).collect();
        assert_eq!(next.iter().filter(|owner| **owner == "first").count(), 10);
    }
}
