//! A resource that many holders share, each up to its share: connections by address, requests and bytes by account, calls of models.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;

/// A holder may have one part in so many of what the others leave.
const PARTS: usize = 4;

/// The most that a holder may have: `each_max` while there is plenty, and less as `others` fill the resource, so that
/// the next holder finds some. At least one, as long as one is left.
fn share(max: usize, others: usize, each_max: usize, parts: usize) -> usize {
    max.saturating_sub(others).div_ceil(parts).min(each_max)
}

#[derive(Debug)]
pub struct Shared<H> {
    max: usize,
    each_max: usize,
    parts: usize,
    /// Told of the whole after each change.
    watch: fn(usize),
    table: Mutex<Table<H>>,
}

/// No larger than the number of [`Held`] parts.
#[derive(Debug)]
struct Table<H> {
    of_holders: HashMap<H, usize>,
    all: usize,
}

/// A holder's part, until it is dropped.
#[derive(Debug)]
pub struct Held<H: Eq + Hash> {
    of: Arc<Shared<H>>,
    holder: H,
    amount: usize,
}

impl<H: Clone + Eq + Hash> Shared<H> {
    pub fn new(max: usize, each_max: usize, watch: fn(usize)) -> Arc<Shared<H>> {
        Shared::in_parts(PARTS, max, each_max, watch)
    }

    /// A holder may have half of what the others leave: for a resource of few parts, of which a single holder should find some.
    pub fn in_halves(max: usize) -> Arc<Shared<H>> {
        Shared::in_parts(2, max, max, |_| ())
    }

    fn in_parts(parts: usize, max: usize, each_max: usize, watch: fn(usize)) -> Arc<Shared<H>> {
        let table = Table {
            of_holders: HashMap::new(),
            all: 0,
        };
        Arc::new(Shared {
            max,
            each_max,
            parts,
            watch,
            table: Mutex::new(table),
        })
    }

    /// Takes a part. `None` if the holder would have more than its share.
    pub fn take(self: &Arc<Self>, holder: &H, amount: usize) -> Option<Held<H>> {
        let mut table = self.table.lock();
        let (own, max) = self.share_of(&table, holder);
        (amount <= max.saturating_sub(own)).then(|| self.hold(&mut table, holder, amount))
    }

    /// Takes a part, however large the holder's share is.
    pub(super) fn take_anyway(self: &Arc<Self>, holder: &H, amount: usize) -> Held<H> {
        self.hold(&mut self.table.lock(), holder, amount)
    }

    /// Whether the holder has nothing, or less than its share.
    pub(super) fn has_room(&self, holder: &H) -> bool {
        let (own, max) = self.share_of(&self.table.lock(), holder);
        own == 0 || own < max
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> usize {
        self.table.lock().all
    }

    /// How much the holder has, and how much it may have.
    fn share_of(&self, table: &Table<H>, holder: &H) -> (usize, usize) {
        let own = table.of_holders.get(holder).copied().unwrap_or_default();
        (own, share(self.max, table.all - own, self.each_max, self.parts))
    }

    fn hold(self: &Arc<Self>, table: &mut Table<H>, holder: &H, amount: usize) -> Held<H> {
        let own = table.of_holders.entry(holder.clone()).or_default();
        *own = own.saturating_add(amount);
        table.all = table.all.saturating_add(amount);
        (self.watch)(table.all);
        Held {
            of: Arc::clone(self),
            holder: holder.clone(),
            amount,
        }
    }
}

impl<H: Eq + Hash> Drop for Held<H> {
    fn drop(&mut self) {
        let mut table = self.of.table.lock();
        table.all = table.all.saturating_sub(self.amount);
        if let Some(own) = table.of_holders.get_mut(&self.holder) {
            *own = own.saturating_sub(self.amount);
            if *own == 0 {
                table.of_holders.remove(&self.holder);
            }
        }
        (self.of.watch)(table.all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_shrinks_as_the_others_grow() {
        let check = |max, others, each_max, expected| {
            assert_eq!(
                share(max, others, each_max, PARTS),
                expected,
                "{max} {others} {each_max}"
            );
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
        let left_by = |holders: usize| (0..holders).fold(1024, |left, _| left - share(1024, 1024 - left, 256, PARTS));
        assert_eq!((left_by(4), left_by(10)), (324, 57));
        assert!(left_by(20) > 0);
    }

    #[test]
    fn what_is_given_back_leaves_no_entry() {
        let shared = Shared::new(100, 10, |_| ());
        let (first, second) = (shared.take(&"a", 6), shared.take(&"a", 4));
        assert!(first.is_some() && second.is_some() && shared.take(&"a", 1).is_none() && !shared.has_room(&"a"));
        let anyway = shared.take_anyway(&"a", 1_000);
        assert!(
            shared.take(&"b", 1).is_none() && shared.has_room(&"b"),
            "nothing is left"
        );
        drop((first, anyway));
        assert!(shared.has_room(&"a") && shared.take(&"b", 10).is_some());
        drop(second);
        assert!(shared.table.lock().of_holders.is_empty() && shared.all() == 0);
    }
}
