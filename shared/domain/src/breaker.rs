//! The breaker of a provider account: calls that would fail are not made. Pure; interop keeps it for tool servers too.
//!
//! A call belongs to the epoch in which it was sent: each opening and each closing begins another one. Outcomes of calls of an
//! earlier epoch change nothing. So the calls that were in flight when it opened neither open it further nor close it, and a
//! probe that takes longer than its time may still close it.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Backoff, string_enum::string_enum};

string_enum! {
    BreakerState {
        /// Calls are made.
        Closed = "closed",
        /// No call is made.
        Open = "open",
        /// One turn tries.
        Probing = "probing",
    }
}

string_enum! {
    /// What happens to a breaker.
    BreakerEvent {
        /// A call failed, and opens it.
        Failed = "failed",
        /// A turn takes the probe.
        Probed = "probed",
        /// A call succeeded.
        Succeeded = "succeeded",
        /// The probe ended in a way that says nothing of the provider.
        GivenBack = "given_back",
    }
}

/// The longest wait that is believed.
pub const RESET_MAX: Duration = Duration::from_hours(24);
/// A rate limit with a stated wait of so long concerns every call, not only the refused one.
pub const WAIT_OPENS: Duration = Duration::from_secs(10);
/// A turn that waits for a breaker looks again after this time at the latest.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// A failure that says something of the provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Every call fails until then; none: until something is done.
    Exhausted { reset: Option<Duration> },
    /// Several of them open the breaker.
    Trouble,
}

/// What the end of a call says of the provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    Good,
    Bad(Fault),
    Neither,
}

/// A call, as far as its breaker goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentCall {
    pub turn: Uuid,
    pub epoch: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakerLimits {
    /// So many failures without a success between open it, if the first is not older than the window.
    pub failures: i32,
    pub window: Duration,
    /// How long it stays open, doubled each time in a row that a probe fails.
    pub open: Duration,
    pub open_max: Duration,
    /// How long one turn has the probe.
    pub probe_max: Duration,
}

/// Times are the database's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "columns", derive(sea_orm::FromQueryResult))]
pub struct Breaker {
    pub state: BreakerState,
    /// Counts openings and closings.
    pub epoch: i64,
    /// In a row, while it is closed.
    pub failures: i32,
    /// The first of them.
    pub window_at: Option<OffsetDateTime>,
    /// Stated by the provider.
    pub reset_at: Option<OffsetDateTime>,
    /// While it is open: when the next turn may try.
    pub probe_at: Option<OffsetDateTime>,
    pub probe_turn: Option<Uuid>,
    /// While it is probing: when another turn may try.
    pub probe_until: Option<OffsetDateTime>,
    /// Openings in a row.
    pub opens: i32,
}

/// A breaker at a moment, as far as the next call goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Deserialize)]
pub struct Standing {
    pub state: BreakerState,
    pub epoch: i64,
    pub probe_turn: Option<Uuid>,
    /// Until the next turn may try. None: at once.
    pub left_ms: Option<u64>,
}

/// What a turn may do that is about to send a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admits {
    Call,
    /// It is the probe, if it can take it.
    Probe,
    /// Nothing: look again after this time.
    Wait(Duration),
}

impl BreakerState {
    /// The transition table, for calls of the present epoch. None: not possible.
    pub fn on(self, event: BreakerEvent) -> Option<BreakerState> {
        use BreakerEvent::{Failed, GivenBack, Probed, Succeeded};
        use BreakerState::{Closed, Open, Probing};
        match (self, event) {
            (Closed | Open | Probing, Failed) => Some(Open),
            // From open: a probe that took longer than its time, while another one has failed to report.
            (Closed | Open | Probing, Succeeded) => Some(Closed),
            // From probing: the time of the turn before is over.
            (Open | Probing, Probed) => Some(Probing),
            (Open | Probing, GivenBack) => Some(Open),
            (Closed, Probed | GivenBack) => None,
        }
    }
}

impl Standing {
    /// Of a provider whose calls have not failed.
    pub const NEW: Standing = Standing {
        state: BreakerState::Closed,
        epoch: 0,
        probe_turn: None,
        left_ms: None,
    };

    /// `turn`: the turn in progress; none: a new one.
    pub fn admits(&self, turn: Option<Uuid>) -> Admits {
        match self.state {
            BreakerState::Closed => Admits::Call,
            // The same turn takes it again: it is sent again after its holder died.
            BreakerState::Probing if turn.is_some() && self.probe_turn == turn => Admits::Probe,
            BreakerState::Open | BreakerState::Probing if self.left_ms.unwrap_or(0) == 0 => Admits::Probe,
            BreakerState::Open | BreakerState::Probing => Admits::Wait(self.look()),
        }
    }

    /// When a turn looks again that may not send its call now. Not all of those that wait look at the very moment at which one
    /// of them tries.
    pub fn look(&self) -> Duration {
        let left = self.left_ms.unwrap_or(0).max(1);
        Duration::from_millis(left.saturating_add(left.div_ceil(10))).min(LOOK_MAX)
    }
}

impl Breaker {
    /// Of a provider whose calls have not failed.
    pub const NEW: Breaker = Breaker {
        state: BreakerState::Closed,
        epoch: 0,
        failures: 0,
        window_at: None,
        reset_at: None,
        probe_at: None,
        probe_turn: None,
        probe_until: None,
        opens: 0,
    };

    pub fn standing(&self, now: OffsetDateTime) -> Standing {
        let until = match self.state {
            BreakerState::Closed => None,
            BreakerState::Open => self.probe_at,
            BreakerState::Probing => self.probe_until,
        };
        let left = until.map(|until| Duration::try_from(until - now).unwrap_or_default());
        Standing {
            state: self.state,
            epoch: self.epoch,
            probe_turn: self.probe_turn,
            left_ms: left.map(|left| u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)),
        }
    }

    /// After a turn has taken the probe. None: it may not.
    pub fn probed(&self, turn: Uuid, now: OffsetDateTime, limits: &BreakerLimits) -> Option<Breaker> {
        match self.standing(now).admits(Some(turn)) {
            Admits::Probe => Some(Breaker {
                state: self.state.on(BreakerEvent::Probed)?,
                probe_turn: Some(turn),
                probe_until: Some(now + limits.probe_max),
                ..*self
            }),
            Admits::Call | Admits::Wait(_) => None,
        }
    }

    /// After a call has ended.
    pub fn ended(&self, call: SentCall, sign: Sign, now: OffsetDateTime, limits: &BreakerLimits) -> Breaker {
        if call.epoch != self.epoch {
            return *self;
        }
        match (self.state, sign) {
            (_, Sign::Good) => self.closed(),
            (BreakerState::Closed, Sign::Bad(Fault::Trouble)) => {
                let began = self.window_at.filter(|began| now - *began <= limits.window);
                let counted = Breaker {
                    failures: if began.is_some() { self.failures + 1 } else { 1 },
                    window_at: began.or(Some(now)),
                    ..*self
                };
                match counted.failures >= limits.failures {
                    true => counted.opened(Fault::Trouble, now, limits),
                    false => counted,
                }
            }
            (_, Sign::Bad(fault)) => self.opened(fault, now, limits),
            (BreakerState::Probing, Sign::Neither) if self.probe_turn == Some(call.turn) => Breaker {
                state: self.state.on(BreakerEvent::GivenBack).unwrap_or(self.state),
                probe_at: Some(now),
                probe_turn: None,
                probe_until: None,
                ..*self
            },
            (_, Sign::Neither) => *self,
        }
    }

    fn opened(&self, fault: Fault, now: OffsetDateTime, limits: &BreakerLimits) -> Breaker {
        let (wait, reset) = match fault {
            Fault::Exhausted { reset: Some(reset) } => (reset.min(RESET_MAX), true),
            Fault::Exhausted { reset: None } => (limits.open_max, false),
            Fault::Trouble => {
                let doubled = Backoff::new(limits.open, limits.open_max);
                (doubled.after(self.opens.max(0).unsigned_abs()), false)
            }
        };
        Breaker {
            state: self.state.on(BreakerEvent::Failed).unwrap_or(self.state),
            epoch: self.epoch + 1,
            reset_at: reset.then(|| now + wait),
            probe_at: Some(now + wait),
            probe_turn: None,
            probe_until: None,
            opens: self.opens.saturating_add(1),
            ..*self
        }
    }

    fn closed(&self) -> Breaker {
        Breaker {
            epoch: self.epoch + i64::from(self.state != BreakerState::Closed),
            ..Breaker::NEW
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-25 12:00 UTC);
    const LIMITS: BreakerLimits = BreakerLimits {
        failures: 3,
        window: Duration::from_secs(60),
        open: Duration::from_secs(30),
        open_max: Duration::from_secs(900),
        probe_max: Duration::from_secs(120),
    };
    const ME: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);
    const TROUBLE: Sign = Sign::Bad(Fault::Trouble);
    const EMPTY: Sign = Sign::Bad(Fault::Exhausted { reset: None });

    fn at(seconds: i64) -> OffsetDateTime {
        NOW + time::Duration::seconds(seconds)
    }

    fn resets_in(seconds: u64) -> Sign {
        let reset = Some(Duration::from_secs(seconds));
        Sign::Bad(Fault::Exhausted { reset })
    }

    /// What its own calls do to it, each sent in the epoch of the moment.
    fn after(breaker: Breaker, signs: &[(i64, Sign)]) -> Breaker {
        signs.iter().fold(breaker, |breaker, (second, sign)| {
            let call = SentCall {
                turn: ME,
                epoch: breaker.epoch,
            };
            breaker.ended(call, *sign, at(*second), &LIMITS)
        })
    }

    #[test]
    fn opens_by_the_table() {
        let check = |signs: &[(i64, Sign)], state, probe_after: Option<i64>, reset: bool| {
            let found = after(Breaker::NEW, signs);
            let last = signs.last().unwrap().0;
            assert_eq!(found.state, state, "{signs:?}");
            assert_eq!(
                found.probe_at,
                probe_after.map(|seconds| at(last + seconds)),
                "{signs:?}"
            );
            assert_eq!(found.reset_at.is_some(), reset, "{signs:?}");
        };
        use BreakerState::{Closed, Open};
        check(&[(0, TROUBLE), (1, TROUBLE)], Closed, None, false);
        check(&[(0, TROUBLE), (1, TROUBLE), (2, TROUBLE)], Open, Some(30), false);
        check(
            &[(0, TROUBLE), (1, TROUBLE), (2, Sign::Good), (3, TROUBLE)],
            Closed,
            None,
            false,
        );
        check(
            &[(0, TROUBLE), (1, TROUBLE), (2, Sign::Neither), (3, TROUBLE)],
            Open,
            Some(30),
            false,
        );
        check(&[(0, TROUBLE), (1, TROUBLE), (61, TROUBLE)], Closed, None, false);
        check(&[(0, EMPTY)], Open, Some(900), false);
        check(&[(0, resets_in(3_600))], Open, Some(3_600), true);
        check(&[(0, resets_in(1_000_000))], Open, Some(86_400), true);
        // Each probe that fails waits twice as long as the one before.
        let opened = [(0, TROUBLE), (1, TROUBLE), (2, TROUBLE)];
        check(&[&opened[..], &[(32, TROUBLE)]].concat(), Open, Some(60), false);
        check(
            &[&opened[..], &[(32, TROUBLE), (92, TROUBLE)]].concat(),
            Open,
            Some(120),
            false,
        );
        let often: Vec<(i64, Sign)> = (0..20).map(|n| (n, TROUBLE)).collect();
        check(&often, Open, Some(900), false);
        check(&[&opened[..], &[(32, Sign::Good)]].concat(), Closed, None, false);
    }

    #[test]
    fn one_turn_tries_at_a_time() {
        let check = |breaker: Breaker, turn, second, expected| {
            assert_eq!(
                breaker.standing(at(second)).admits(turn),
                expected,
                "{breaker:?} {turn:?} {second}"
            );
        };
        let wait = |ms| Admits::Wait(Duration::from_millis(ms));
        check(Breaker::NEW, None, 0, Admits::Call);
        let open = after(Breaker::NEW, &[(0, resets_in(30))]);
        check(open, None, 0, wait(33_000));
        check(open, Some(ME), 20, wait(11_000));
        check(open, None, 30, Admits::Probe);
        check(after(Breaker::NEW, &[(0, EMPTY)]), None, 0, wait(60_000));
        assert_eq!(open.probed(ME, at(29), &LIMITS), None);
        let probing = open.probed(ME, at(30), &LIMITS).unwrap();
        assert_eq!((probing.state, probing.epoch), (BreakerState::Probing, open.epoch));
        check(probing, None, 40, wait(60_000));
        check(probing, Some(OTHER), 149, wait(1_100));
        check(probing, Some(ME), 31, Admits::Probe);
        check(probing, Some(OTHER), 150, Admits::Probe);
        assert_eq!(probing.probed(OTHER, at(149), &LIMITS), None);
        assert_eq!(probing.probed(OTHER, at(150), &LIMITS).unwrap().probe_turn, Some(OTHER));
        // It says nothing of the provider: the next may try at once.
        let back = after(probing, &[(31, Sign::Neither)]);
        check(back, None, 31, Admits::Probe);
        assert_eq!(back.opens, open.opens);
    }

    #[test]
    fn a_call_of_another_epoch_changes_nothing() {
        let open = after(Breaker::NEW, &[(0, EMPTY)]);
        let before = SentCall { turn: ME, epoch: 0 };
        for sign in [Sign::Good, TROUBLE, EMPTY, Sign::Neither] {
            assert_eq!(open.ended(before, sign, at(1), &LIMITS), open, "{sign:?}");
        }
        let closed = after(open, &[(900, Sign::Good)]);
        for sign in [TROUBLE, EMPTY] {
            assert_eq!(closed.ended(before, sign, at(901), &LIMITS), closed, "{sign:?}");
        }
    }

    #[test]
    fn a_probe_that_took_too_long_still_closes_it() {
        let open = after(Breaker::NEW, &[(0, EMPTY)]);
        let mine = open.probed(ME, at(900), &LIMITS).unwrap();
        let taken = mine.probed(OTHER, at(1_020), &LIMITS).unwrap();
        let closed = after(taken, &[(1_030, Sign::Good)]);
        assert_eq!((closed.state, closed.opens), (BreakerState::Closed, 0));
    }

    fn any_sign() -> impl Strategy<Value = Sign> {
        prop_oneof![
            Just(Sign::Good),
            Just(Sign::Neither),
            Just(TROUBLE),
            Just(EMPTY),
            (1..200_000_u64).prop_map(resets_in),
        ]
    }

    proptest! {
        /// Turns that ask, send and end in any order: behind a breaker that is open, one call is in flight at a time, but for
        /// those whose time is over.
        #[test]
        fn behind_an_open_breaker_one_call_is_in_flight(
            deeds in prop::collection::vec((1..400_i64, any::<bool>(), 0..5_usize, any_sign()), 1..80)
        ) {
            let (mut breaker, mut second, mut next) = (Breaker::NEW, 0, 10_u128);
            let mut in_flight: Vec<(SentCall, i64)> = Vec::new();
            for (seconds, asks, which, sign) in deeds {
                second += seconds;
                let now = at(second);
                if asks {
                    next += 1;
                    let turn = Uuid::from_u128(next);
                    match breaker.standing(now).admits(None) {
                        Admits::Call => prop_assert_eq!(breaker.state, BreakerState::Closed),
                        Admits::Probe => breaker = breaker.probed(turn, now, &LIMITS).unwrap(),
                        Admits::Wait(wait) => {
                            prop_assert!(!wait.is_zero() && wait <= LOOK_MAX);
                            prop_assert_eq!(breaker.probed(turn, now, &LIMITS), None);
                            continue;
                        }
                    }
                    in_flight.push((SentCall { turn, epoch: breaker.epoch }, second));
                } else if !in_flight.is_empty() {
                    let (call, _) = in_flight.remove(which % in_flight.len());
                    breaker = breaker.ended(call, sign, now, &LIMITS);
                }
                let tries = in_flight.iter().filter(|(call, sent)| {
                    call.epoch == breaker.epoch && second - sent < 120
                });
                prop_assert!(breaker.state == BreakerState::Closed || tries.count() <= 1);
                prop_assert_eq!(breaker.state == BreakerState::Closed, breaker.probe_at.is_none());
            }
        }
    }
}
