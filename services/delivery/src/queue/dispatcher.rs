//! The sessions that wait in this process, and their order: accounts take turns, with a limit per account and a total
//! limit.
//!
//! [`DispatchQueue`] is the data structure, without time or I/O; the conductor runs it. It is not the source of truth:
//! the sweep finds a session whose wake-up was dropped because the queue was full. All accounts share the queue, and a
//! full queue is divided evenly: the account with the most waiting sessions makes room for accounts with fewer.
//!
//! A session whose provider has no free slot is set aside, under the provider's name, so that it takes no place from a
//! session of another provider.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use domain::{AccountId, SessionId};
use runtime::turns::Turns;

use crate::{settings::DeliverySettings, store::SessionName};

#[derive(Clone, Copy, Debug)]
enum Standing {
    Waiting,
    /// A worker has the session; `again`: it was woken meanwhile.
    Busy {
        again: bool,
    },
    /// Waits for a slot of its provider.
    Aside,
}

#[derive(Clone, Debug, Default)]
struct Account {
    waiting: VecDeque<SessionId>,
    in_flight: usize,
    /// The account's own limit, as last read.
    limit: Option<usize>,
    in_turn: bool,
}

impl Account {
    /// How many more sessions may be busy.
    fn places(&self, limits: &DeliverySettings) -> usize {
        let limit = limits.turns_in_flight_account_max.usize();
        let limit = self.limit.map_or(limit, |own| own.min(limit));
        limit.saturating_sub(self.in_flight)
    }
}

/// Woken sessions, by account; accounts take turns.
#[derive(Clone, Debug)]
pub struct DispatchQueue {
    limits: Arc<DeliverySettings>,
    places: HashMap<SessionName, Standing>,
    accounts: HashMap<AccountId, Account>,
    /// Accounts with waiting sessions and below their limits, in the order of their turns.
    turn: VecDeque<AccountId>,
    /// Accounts by number of waiting sessions: the last one makes room when the queue is full.
    shares: BTreeSet<(usize, AccountId)>,
    in_flight: usize,
    waiting: usize,
    /// Sessions that wait for a slot of a provider, by its name; accounts take turns.
    aside: HashMap<String, Turns<AccountId, SessionId>>,
    /// Entries in `aside`.
    waiting_aside: usize,
}

impl DispatchQueue {
    pub fn new(limits: Arc<DeliverySettings>) -> DispatchQueue {
        DispatchQueue {
            limits,
            places: HashMap::new(),
            accounts: HashMap::new(),
            turn: VecDeque::new(),
            shares: BTreeSet::new(),
            in_flight: 0,
            waiting: 0,
            aside: HashMap::new(),
            waiting_aside: 0,
        }
    }

    /// Queues a session that may have work. `false`: the queue was full, and this wake-up, or one of the account with
    /// the most, was dropped.
    pub fn wake(&mut self, name: SessionName) -> bool {
        match self.places.get_mut(&name) {
            Some(Standing::Waiting | Standing::Aside) => true,
            Some(Standing::Busy { again }) => {
                *again = true;
                true
            }
            None if self.waiting < self.limits.waiting_sessions_max.usize() => {
                self.append(name);
                true
            }
            None => {
                if self.make_room(&name.0) {
                    self.append(name);
                }
                false
            }
        }
    }

    /// Like [`DispatchQueue::wake`], for a session whose turn is to end: that needs no slot, so it no longer waits for one.
    pub fn wake_ending(&mut self, name: SessionName) -> bool {
        if matches!(self.places.get(&name), Some(Standing::Aside)) {
            // The entry in `aside` stays and is skipped later.
            self.places.remove(&name);
        }
        self.wake(name)
    }

    /// Takes up to `max` sessions; each is busy until it is [`DispatchQueue::free`]d.
    pub fn take(&mut self, max: usize) -> Vec<SessionName> {
        let mut taken = Vec::new();
        while taken.len() < max && self.in_flight < self.limits.turns_in_flight_max.usize() {
            let Some(id) = self.turn.pop_front() else { break };
            let account = self.accounts.get_mut(&id).expect("a queued account has an entry");
            account.in_turn = false;
            if account.places(&self.limits) == 0 {
                // Its limit was lowered: a turn that ends brings it back.
                continue;
            }
            let session = account
                .waiting
                .pop_front()
                .expect("a queued account has a waiting session");
            account.in_flight += 1;
            self.in_flight += 1;
            self.waiting -= 1;
            shared(&mut self.shares, &id, account.waiting.len() + 1, account.waiting.len());
            self.places
                .insert((id.clone(), session), Standing::Busy { again: false });
            self.queue(&id);
            taken.push((id, session));
        }
        taken
    }

    /// Releases a busy session. `more`: it has more work, and is queued again at the end of its account.
    pub fn free(&mut self, name: SessionName, more: bool) {
        let Some(Standing::Busy { again }) = self.places.remove(&name) else {
            return;
        };
        self.in_flight -= 1;
        let account = self
            .accounts
            .get_mut(&name.0)
            .expect("an account with a busy session has an entry");
        account.in_flight -= 1;
        if more || again {
            self.append(name);
        } else if account.in_flight == 0 && account.waiting.is_empty() {
            self.accounts.remove(&name.0);
        } else {
            self.queue(&name.0);
        }
    }

    /// Whether a busy session may start its next turn in its place, so that no one waits longer: every waiting session
    /// that may have a place gets one. Where sessions of its own account get none, it may go on for as long as its stay is
    /// `brief`. Sessions that wait for their account's limit could not use the place of another account.
    pub fn may_go_on(&self, name: &SessionName, provider: &str, brief: bool) -> bool {
        let Some(account) = self.accounts.get(&name.0) else {
            return false;
        };
        if self.aside.contains_key(provider) {
            return false;
        }
        let free = self.limits.turns_in_flight_max.usize().saturating_sub(self.in_flight);
        // An account in the turn needs a place at least.
        let wanted = self.turn.iter().take(free + 1).map(|id| {
            let account = &self.accounts[id];
            account.waiting.len().min(account.places(&self.limits))
        });
        let all_fit = wanted.sum::<usize>() <= free;
        let own_fit = account.waiting.len() <= account.places(&self.limits);
        let others_wait = self.turn.len() > usize::from(account.in_turn);
        match all_fit {
            true => own_fit || brief,
            false => brief && !others_wait,
        }
    }

    /// Puts an account into the turn, unless it is there, has no waiting session, or is at its limit.
    fn queue(&mut self, id: &AccountId) {
        if let Some(account) = self.accounts.get_mut(id)
            && !account.in_turn
            && !account.waiting.is_empty()
            && account.places(&self.limits) > 0
        {
            account.in_turn = true;
            self.turn.push_back(id.clone());
        }
    }

    /// Releases a busy session whose provider has no free slot, and sets it aside. If too many are set aside, it is
    /// dropped: the sweep finds it.
    pub fn set_aside(&mut self, name: SessionName, provider: &str) {
        self.free(name.clone(), false);
        // Woken meanwhile: it is queued in its account already, and will be set aside from there.
        if self.places.contains_key(&name) || self.waiting_aside >= self.limits.waiting_sessions_max.usize() {
            return;
        }
        self.places.insert(name.clone(), Standing::Aside);
        let (account, session) = name;
        self.aside
            .entry(provider.to_owned())
            .or_default()
            .push(account, 1, session);
        self.waiting_aside += 1;
    }

    /// Moves sessions that were set aside to the front of their accounts' queues, as many as their providers have free
    /// slots.
    pub fn call_back(&mut self, slots_free: impl Fn(&str) -> usize) {
        let mut back = Vec::new();
        let (places, waiting_aside) = (&self.places, &mut self.waiting_aside);
        self.aside.retain(|provider, aside| {
            let popped = std::iter::from_fn(|| aside.pop()).inspect(|_| *waiting_aside -= 1);
            let still_aside = popped.filter(|name| matches!(places.get(name), Some(Standing::Aside)));
            back.extend(still_aside.take(slots_free(provider)));
            !aside.is_empty()
        });
        // In reverse, so that the first session called back is the first in its queue.
        for name in back.into_iter().rev() {
            self.insert(name, VecDeque::push_front);
        }
    }

    /// Sets the account's own limit, as just read.
    pub fn limit(&mut self, account: &AccountId, limit: Option<usize>) {
        if let Some(entry) = self.accounts.get_mut(account) {
            entry.limit = limit;
            self.queue(account);
        }
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn waiting_aside(&self) -> usize {
        self.waiting_aside
    }

    /// Drops the newest session of the account with the most, if that account then still has at least as many as
    /// `account` with its new session.
    fn make_room(&mut self, account: &AccountId) -> bool {
        let own = self.accounts.get(account).map_or(0, |account| account.waiting.len());
        let Some((most, id)) = self.shares.last().filter(|(most, _)| own + 1 < *most).cloned() else {
            return false;
        };
        let largest = self.accounts.get_mut(&id).expect("a queued account has an entry");
        let session = largest
            .waiting
            .pop_back()
            .expect("a queued account has a waiting session");
        shared(&mut self.shares, &id, most, most - 1);
        self.places.remove(&(id, session));
        self.waiting -= 1;
        true
    }

    fn append(&mut self, name: SessionName) {
        self.insert(name, VecDeque::push_back);
    }

    fn insert(&mut self, name: SessionName, push: fn(&mut VecDeque<SessionId>, SessionId)) {
        let account = self.accounts.entry(name.0.clone()).or_default();
        push(&mut account.waiting, name.1);
        shared(
            &mut self.shares,
            &name.0,
            account.waiting.len() - 1,
            account.waiting.len(),
        );
        self.waiting += 1;
        self.queue(&name.0);
        self.places.insert(name, Standing::Waiting);
    }
}

/// Updates an account's count of waiting sessions.
fn shared(shares: &mut BTreeSet<(usize, AccountId)>, account: &AccountId, before: usize, now: usize) {
    shares.remove(&(before, account.clone()));
    if now > 0 {
        shares.insert((now, account.clone()));
    }
}

#[cfg(test)]
mod tests {
    use runtime::settings::Count;
    use uuid::Uuid;

    use super::*;

    /// With these limits of turns in the process, turns of one account, and waiting sessions.
    fn queue(in_flight: u32, of_an_account: u32, waiting: u32) -> DispatchQueue {
        DispatchQueue::new(Arc::new(DeliverySettings {
            turns_in_flight_max: Count::new(in_flight),
            turns_in_flight_account_max: Count::new(of_an_account),
            waiting_sessions_max: Count::new(waiting),
            ..DeliverySettings::default()
        }))
    }

    fn name(account: &str, session: u128) -> SessionName {
        (AccountId::parse(account).unwrap(), SessionId(Uuid::from_u128(session)))
    }

    fn accounts(taken: &[SessionName]) -> Vec<&str> {
        taken.iter().map(|(account, _)| account.as_str()).collect()
    }

    #[test]
    fn accounts_take_turns_and_limits_hold() {
        let mut queue = queue(4, 3, 100);
        for session in 0..10 {
            queue.wake(name("big", session));
        }
        queue.wake(name("small", 100));
        let taken = queue.take(10);
        assert_eq!(accounts(&taken), ["big", "small", "big", "big"]);
        assert!(queue.take(10).is_empty(), "the process is full");
        queue.free(taken[1].clone(), false);
        assert!(queue.take(10).is_empty(), "the account is full");
        queue.free(taken[0].clone(), false);
        assert_eq!(accounts(&queue.take(10)), ["big"]);
        assert_eq!((queue.in_flight(), queue.waiting()), (3, 6));
    }

    #[test]
    fn a_session_has_one_worker_and_a_wake_up_meanwhile_is_kept() {
        let mut queue = queue(4, 3, 100);
        let session = name("acme", 1);
        queue.wake(session.clone());
        queue.wake(session.clone());
        assert_eq!(queue.take(10).len(), 1);
        queue.wake(session.clone());
        assert!(queue.take(10).is_empty());
        queue.free(session.clone(), false);
        assert_eq!(queue.take(10), std::slice::from_ref(&session));
        queue.free(session.clone(), false);
        assert!(queue.take(10).is_empty());
        assert!(
            queue.accounts.is_empty() && queue.places.is_empty() && queue.shares.is_empty(),
            "an idle account leaves no entry"
        );
    }

    #[test]
    fn a_session_without_a_slot_waits_aside_and_comes_back_when_there_is_one() {
        let mut queue = queue(4, 3, 100);
        for session in 0..3 {
            queue.wake(name("big", session));
        }
        queue.wake(name("small", 100));
        for taken in queue.take(10) {
            queue.set_aside(taken, "slow");
        }
        assert_eq!((queue.in_flight(), queue.waiting(), queue.waiting_aside()), (0, 0, 4));
        assert!(queue.wake(name("big", 0)), "it is known already");
        queue.call_back(|_| 0);
        assert!(queue.take(10).is_empty());

        // A session of another provider can take all places, and a session that is called back comes first.
        queue.wake(name("big", 7));
        queue.call_back(|provider| usize::from(provider == "slow"));
        assert_eq!((queue.waiting(), queue.waiting_aside()), (2, 3));
        assert_eq!(queue.take(10), [name("big", 0), name("big", 7)]);

        // Accounts take turns here as well.
        queue.call_back(|_| 2);
        assert_eq!(queue.take(10), [name("big", 1), name("small", 100)]);
        queue.free(name("big", 0), false);
        queue.call_back(|_| usize::MAX);
        assert_eq!(queue.take(10), [name("big", 2)]);
        for session in [1, 2, 7] {
            queue.free(name("big", session), false);
        }
        queue.free(name("small", 100), false);
        assert!(
            queue.accounts.is_empty() && queue.places.is_empty() && queue.aside.is_empty() && queue.shares.is_empty()
        );
    }

    #[test]
    fn sessions_set_aside_are_limited_and_a_wake_up_meanwhile_is_kept() {
        let mut queue = queue(4, 3, 2);
        for session in 0..2 {
            queue.wake(name("acme", session));
        }
        let taken = queue.take(10);
        queue.wake(name("acme", 2));
        queue.wake(taken[0].clone());
        for name in taken.clone() {
            queue.set_aside(name, "slow");
        }
        assert_eq!(
            (queue.waiting(), queue.waiting_aside()),
            (2, 1),
            "the woken session is queued"
        );
        assert_eq!(queue.take(10), [name("acme", 2), taken[0].clone()]);
        queue.set_aside(name("acme", 2), "slow");
        queue.set_aside(taken[0].clone(), "slow");
        assert_eq!(queue.waiting_aside(), 2, "the sweep finds the third");
        assert!(!queue.places.contains_key(&taken[0]));
    }

    #[test]
    fn a_session_closed_while_set_aside_needs_no_slot() {
        let mut queue = queue(4, 3, 100);
        for session in 0..2 {
            queue.wake(name("acme", session));
        }
        for taken in queue.take(10) {
            queue.set_aside(taken, "slow");
        }
        assert!(queue.wake_ending(name("acme", 0)));
        queue.call_back(|_| 0);
        assert_eq!(queue.take(10), [name("acme", 0)]);
        queue.free(name("acme", 0), false);
        queue.call_back(|_| 1);
        assert_eq!(queue.take(10), [name("acme", 1)]);
        queue.free(name("acme", 1), false);
        assert_eq!(queue.waiting_aside(), 0);
        assert!(
            queue.accounts.is_empty() && queue.places.is_empty() && queue.aside.is_empty() && queue.shares.is_empty()
        );
    }

    #[test]
    fn an_account_may_lower_its_limit_and_a_full_queue_drops_wake_ups() {
        let mut queue = queue(4, 3, 3);
        for session in 0..3 {
            assert!(queue.wake(name("acme", session)));
        }
        assert!(!queue.wake(name("acme", 3)));
        queue.limit(&AccountId::parse("acme").unwrap(), Some(1));
        assert_eq!(queue.take(10).len(), 1);
    }

    #[test]
    fn a_session_goes_on_only_where_no_one_waits_for_its_place() {
        let mut queue = queue(4, 3, 100);
        let first = name("acme", 0);
        let may = |queue: &DispatchQueue| [true, false].map(|brief| queue.may_go_on(&first, "default", brief));
        for session in 0..3 {
            queue.wake(name("acme", session));
        }
        queue.take(3);
        assert_eq!(may(&queue), [true, true], "the account is full, and no one waits");
        queue.wake(name("acme", 3));
        assert_eq!(may(&queue), [true, false], "its own account waits");
        queue.wake(name("umbra", 10));
        assert_eq!(may(&queue), [true, false], "another account has a place");
        assert_eq!(queue.take(4), [name("umbra", 10)]);
        assert_eq!(
            may(&queue),
            [true, false],
            "the process is full, and only its own account waits"
        );
        queue.wake(name("umbra", 11));
        assert_eq!(may(&queue), [false, false], "another account has no place");
        queue.limit(&name("umbra", 11).0, Some(1));
        assert_eq!(queue.take(4), []);
        assert_eq!(
            may(&queue),
            [true, false],
            "another account waits for its own limit and not for a place"
        );
        queue.free(name("acme", 1), false);
        assert_eq!(may(&queue), [true, true], "who waits has a place");

        queue.set_aside(name("acme", 2), "slow");
        assert_eq!(may(&queue), [true, true], "another provider has no slot");
        queue.set_aside(name("umbra", 10), "default");
        assert_eq!(may(&queue), [false, false], "its provider's slot is waited for");
        assert!(!queue.may_go_on(&name("zeta", 1), "none", true), "it is not busy");
    }

    #[test]
    fn an_account_at_its_limit_comes_back_when_it_may_have_a_place() {
        let mut queue = queue(10, 2, 100);
        for session in 0..4 {
            queue.wake(name("acme", session));
        }
        assert_eq!(queue.take(10).len(), 2);
        assert_eq!(queue.take(10), []);
        queue.free(name("acme", 0), false);
        assert_eq!(queue.take(10), [name("acme", 2)]);
        let acme = name("acme", 0).0;
        queue.limit(&acme, Some(1));
        queue.free(name("acme", 1), false);
        assert_eq!(queue.take(10), [], "its own limit is lower");
        queue.limit(&acme, None);
        assert_eq!(queue.take(10), [name("acme", 3)]);
    }

    #[test]
    fn an_account_over_its_share_of_a_full_queue_loses_only_its_own_wake_ups() {
        let mut queue = queue(100, 100, 6);
        for session in 0..1_000 {
            queue.wake(name("big", session));
        }
        assert_eq!(queue.waiting(), 6);
        assert!(!queue.wake(name("small", 1)), "a wake-up was dropped");
        assert!(!queue.wake(name("small", 2)));
        assert!(!queue.wake(name("other", 3)));
        assert!(!queue.wake(name("big", 1_000)));
        assert!(!queue.wake(name("small", 4)), "the account has as many as any other");
        let taken = queue.take(100);
        let of = |account: &str| accounts(&taken).iter().filter(|one| **one == account).count();
        assert_eq!((of("big"), of("small"), of("other")), (3, 2, 1));
        assert_eq!(
            taken.iter().find(|(account, _)| account.as_str() == "big"),
            Some(&name("big", 0)),
            "the oldest keep their places"
        );
        assert!(queue.wake(name("big", 5)), "a dropped session can be woken again");
        for name in taken {
            queue.free(name, false);
        }
        assert_eq!(queue.take(100), [name("big", 5)]);
        queue.free(name("big", 5), false);
        assert!(queue.accounts.is_empty() && queue.places.is_empty() && queue.shares.is_empty());
    }
}
