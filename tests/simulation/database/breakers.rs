//! The breakers of providers, as `storage::breaker` keeps them and `delivery::breaker` uses them.

use delivery::{
    breaker::{Pass, Said, standing},
    turn::claim::carry_on,
};
use domain::{
    BreakerState, Gate, SessionEvent,
    breaker::{Admits, Breaker, SentCall, Sign},
};
use std::{sync::Arc, time::Duration};
use storage::{
    breaker::Seen,
    session::{sessions_lock::LockedSession, sessions_park::Park},
};
use uuid::Uuid;

use super::{Database, claims::possible};
use crate::simulation::{bugs::Bug, settings::Settings};
use delivery::{store::claim::OpenTurn, turn::resume::Due};

impl Database {
    /// `breaker_of!`.
    pub(super) fn breaker_of(&self, provider: &str) -> Option<Seen> {
        let breaker = self.breakers.get(provider)?;
        Some(Seen(breaker.standing(self.now())))
    }

    /// `Breakers::probe`, for one turn.
    fn probe(&mut self, provider: &str, turn: Uuid, settings: &Settings) -> Result<Pass, Duration> {
        let now = self.now();
        let breaker = self.breakers.entry(provider.to_owned()).or_insert(Breaker::NEW);
        let standing = breaker.standing(now);
        match standing.admits(Some(turn)) {
            Admits::Call => Ok(Pass {
                epoch: standing.epoch,
                probes: false,
            }),
            Admits::Wait(look) => Err(look),
            Admits::Probe => {
                let limits = settings.delivery.breaker_limits();
                *breaker = breaker.probed(turn, now, &limits).expect("it admits a probe");
                Ok(Pass {
                    epoch: breaker.epoch,
                    probes: true,
                })
            }
        }
    }

    /// Whether a turn may send its call. `turn`: of a turn in progress; none: a new one, with the id that it would have.
    pub(super) fn pass(
        &mut self,
        (provider, seen): (&str, Option<Seen>),
        (turn, is_new): (Uuid, bool),
        settings: &Settings,
        bug: Option<Bug>,
    ) -> Result<Pass, Duration> {
        let standing = standing(seen);
        match standing.admits(Some(turn).filter(|_| !is_new)) {
            Admits::Call => Ok(Pass::closed(seen)),
            Admits::Wait(_) | Admits::Probe if bug == Some(Bug::AllProbe) => Ok(Pass {
                epoch: standing.epoch,
                probes: true,
            }),
            Admits::Wait(look) => Err(look),
            Admits::Probe => self.probe(provider, turn, settings),
        }
    }

    /// A session whose turn may not begin.
    pub(super) fn park_for_provider(session: &LockedSession, look: Duration, bug: Option<Bug>) -> Option<Park> {
        let state = possible(session.facts.state().on(SessionEvent::Parked), bug)?;
        Some(Park {
            session: session.name(),
            phase: state.phase,
            gate: Gate::Provider,
            gate_ref: None,
            wake_ms: i64::try_from(look.as_millis()).ok(),
        })
    }

    /// The part of `defer.rs` for one turn in progress, and `TURNS_DEFER`. None: it waits.
    pub(super) fn pass_or_defer(
        &mut self,
        session: &LockedSession,
        turn: &OpenTurn,
        settings: &Settings,
        bug: Option<Bug>,
    ) -> Option<Pass> {
        let provider = settings.provider(&turn.provider);
        let resumed = carry_on(session, turn.clone(), provider, Arc::default(), None);
        if possible(resumed, bug).is_none_or(|work| work.due != Due::Send) {
            return Some(Pass::closed(turn.breaker));
        }
        let look = match self.pass((&turn.provider, turn.breaker), (turn.id.uuid(), false), settings, bug) {
            Ok(pass) => return Some(pass),
            Err(look) => look,
        };
        let state = possible(session.facts.state().on(SessionEvent::Deferred), bug)?;
        let wake_at = self.now + i64::try_from(look.as_millis()).unwrap_or(i64::MAX);
        let row = self.sessions.get_mut(&session.name()).expect("locked");
        row.phase = state.phase;
        row.lease_owner = None;
        row.wake_at = Some(wake_at);
        None
    }

    /// `Breakers::record`, for one report. Gives how long its turn waits for the breaker.
    pub(super) fn said(&mut self, said: Option<Said<'_>>, settings: &Settings) -> Option<Duration> {
        let said = said?;
        let may_change = match said.sign {
            Sign::Bad(_) | Sign::Good => true,
            Sign::Neither => said.pass.probes,
        };
        if !may_change {
            return None;
        }
        let now = self.now();
        let call = SentCall {
            turn: said.turn.1.uuid(),
            epoch: said.pass.epoch,
        };
        let breaker = self.breakers.entry(said.provider.to_owned()).or_insert(Breaker::NEW);
        *breaker = breaker.ended(call, said.sign, now, &settings.delivery.breaker_limits());
        let waits = breaker.state != BreakerState::Closed && matches!(said.sign, Sign::Bad(_));
        waits.then(|| breaker.standing(now).look())
    }

    /// What the sweep does for a breaker that has closed (`sessions_open`). `true`: delivery is woken.
    pub(crate) fn settle_breakers(&mut self) -> Vec<storage::session::SessionName> {
        let now = self.now;
        let closed = |provider: &str| {
            self.breakers
                .get(provider)
                .is_none_or(|one| one.state == BreakerState::Closed)
        };
        let mut opened = Vec::new();
        for (name, row) in &mut self.sessions {
            let agent = self.agents.get(&(name.0.clone(), row.conversation.agent));
            if row.gate == Some(Gate::Provider) && agent.is_none_or(|agent| closed(&agent.provider)) {
                row.gate = None;
                row.wake_at = Some(now);
                opened.push(name.clone());
            }
        }
        opened
    }
}
