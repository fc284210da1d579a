//! Counts deliveries that are not attempts. The server counts deliveries; a message that was only postponed (the
//! database or the broker was unavailable) must not be buried for that.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

/// By sequence in the stream. In memory: after a restart a message may be buried some attempts early, which an operator
/// can undo.
#[derive(Default)]
pub(crate) struct Postponed(Mutex<HashMap<u64, i64>>);

/// Another replica may settle a message that was counted here; stale entries must not pile up.
const ENTRIES_MAX: usize = 65_536;

impl Postponed {
    pub(crate) fn count(&self, sequence: u64) -> i64 {
        self.entries().get(&sequence).copied().unwrap_or(0)
    }

    pub(crate) fn note(&self, sequence: u64) {
        let mut entries = self.entries();
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        *entries.entry(sequence).or_default() += 1;
    }

    pub(crate) fn forget(&self, sequence: u64) {
        self.entries().remove(&sequence);
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<u64, i64>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_message_until_it_is_settled() {
        let postponed = Postponed::default();
        postponed.note(1);
        postponed.note(1);
        postponed.note(2);
        assert_eq!((postponed.count(1), postponed.count(2), postponed.count(3)), (2, 1, 0));
        postponed.forget(1);
        assert_eq!((postponed.count(1), postponed.count(2)), (0, 1));
    }

    #[test]
    fn entries_settled_by_others_do_not_pile_up() {
        let postponed = Postponed::default();
        for sequence in 0..3 * ENTRIES_MAX as u64 {
            postponed.note(sequence);
        }
        assert!(postponed.entries().len() <= ENTRIES_MAX);
    }
}
