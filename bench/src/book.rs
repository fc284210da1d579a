//! The provider's record of calls, and its checks: the calls of each pair in order, one at a time, once each.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::load::now_us;

/// Calls since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) calls: u64,
    /// Notifications with a call.
    pub(crate) notifications: u64,
    /// Repeated calls for a notification.
    pub(crate) repeated: u64,
    pub(crate) out_of_order: u64,
    /// Calls while another call of the same pair was in progress.
    pub(crate) overlapping: u64,
    pub(crate) in_flight_max: u64,
    /// Calls without a recognisable notification.
    pub(crate) unmarked: u64,
    /// The last call that its caller has ended before its answer.
    pub(crate) dropped: Option<Dropped>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dropped {
    /// Of its notification.
    pub(crate) number: u32,
    pub(crate) at_us: u64,
}

pub(crate) struct Book {
    calls_a_turn: u32,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    seen: Seen,
    pairs: HashMap<u32, Pair>,
    in_flight: u64,
}

#[derive(Default)]
struct Pair {
    /// The newest notification, and the number of calls for it.
    newest: Option<(u32, u32)>,
    in_flight: u32,
}

/// A call in progress. It ends when it is dropped: answered, or aborted by the caller.
pub(crate) struct Call<'a> {
    book: &'a Book,
    marked: Option<(u32, u32)>,
    is_answered: bool,
}

impl Call<'_> {
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Book {
    /// Expects so many calls for each notification.
    pub(crate) fn new(calls_a_turn: u32) -> Book {
        Book {
            calls_a_turn,
            pages: Mutex::default(),
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        self.pages().seen.clone()
    }

    pub(crate) fn begin(&self, marked: Option<(u32, u32)>) -> Call<'_> {
        self.pages().begin(marked, self.calls_a_turn);
        Call {
            book: self,
            marked,
            is_answered: false,
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // The counters are consistent even if a holder panicked.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut pages = self.book.pages();
        pages.in_flight -= 1;
        let Some((pair, number)) = self.marked else { return };
        if let Some(pair) = pages.pairs.get_mut(&pair) {
            pair.in_flight -= 1;
        }
        if !self.is_answered {
            let at_us = now_us();
            pages.seen.dropped = Some(Dropped { number, at_us });
        }
    }
}

impl Pages {
    fn begin(&mut self, marked: Option<(u32, u32)>, calls_a_turn: u32) {
        self.seen.calls += 1;
        self.in_flight += 1;
        self.seen.in_flight_max = self.seen.in_flight_max.max(self.in_flight);
        let Some((pair, number)) = marked else {
            self.seen.unmarked += 1;
            return;
        };
        let pair = self.pairs.entry(pair).or_default();
        pair.in_flight += 1;
        self.seen.overlapping += u64::from(pair.in_flight > 1);
        match &mut pair.newest {
            Some((newest, calls)) if *newest == number => {
                *calls += 1;
                self.seen.repeated += u64::from(*calls > calls_a_turn);
            }
            Some((newest, _)) if *newest > number => self.seen.out_of_order += 1,
            newest => {
                *newest = Some((number, 1));
                self.seen.notifications += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_overlap_and_repetition_are_seen() {
        let book = Book::new(1);
        for call in [(1, 1), (1, 2), (2, 3), (2, 3), (1, 1)] {
            drop(book.begin(Some(call)));
        }
        let seen = book.seen();
        assert_eq!((seen.notifications, seen.repeated, seen.out_of_order), (3, 1, 1));
        assert_eq!((seen.overlapping, seen.in_flight_max), (0, 1));
        let _one = book.begin(Some((1, 5)));
        let _other = book.begin(Some((1, 6)));
        let seen = book.seen();
        assert_eq!((seen.overlapping, seen.in_flight_max), (1, 2));
    }
}
