//! A queue that several owners share: they take turns, and each owner's entries keep their order. In memory; the caller bounds it.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
};

#[derive(Clone, Debug)]
pub struct Turns<K, V> {
    /// Owners with entries, in the order of their turns.
    turn: VecDeque<K>,
    /// None of them is empty.
    entries: HashMap<K, VecDeque<V>>,
    len: usize,
}

impl<K, V> Default for Turns<K, V> {
    fn default() -> Turns<K, V> {
        Turns {
            turn: VecDeque::new(),
            entries: HashMap::new(),
            len: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, V> Turns<K, V> {
    pub fn push(&mut self, owner: K, entry: V) {
        self.len += 1;
        match self.entries.entry(owner) {
            Entry::Occupied(mut entries) => entries.get_mut().push_back(entry),
            Entry::Vacant(none) => {
                self.turn.push_back(none.key().clone());
                none.insert(VecDeque::from([entry]));
            }
        }
    }

    /// The next owner's oldest entry.
    pub fn pop(&mut self) -> Option<(K, V)> {
        let owner = self.turn.pop_front()?;
        let entries = self.entries.get_mut(&owner)?;
        let entry = entries.pop_front()?;
        self.len -= 1;
        if entries.is_empty() {
            self.entries.remove(&owner);
        } else {
            self.turn.push_back(owner.clone());
        }
        Some((owner, entry))
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_take_turns_and_keep_their_order() {
        let mut queue = Turns::default();
        for entry in 0..4 {
            queue.push("large", entry);
        }
        queue.push("small", 4);
        queue.push("other", 5);
        assert_eq!(queue.len(), 6);
        assert_eq!(queue.pop(), Some(("large", 0)));
        queue.push("small", 6);
        let rest: Vec<(&str, i32)> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(
            rest,
            [
                ("small", 4),
                ("other", 5),
                ("large", 1),
                ("small", 6),
                ("large", 2),
                ("large", 3)
            ]
        );
        assert!(queue.is_empty() && queue.turn.is_empty() && queue.entries.is_empty());
    }
}
