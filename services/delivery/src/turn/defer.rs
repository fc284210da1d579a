//! Turns in progress whose call may not be sent now: their provider is not in the settings, or its breaker is not closed. They
//! wait as they are, results included, and use no attempt.

use std::{collections::HashMap, time::Duration};

use domain::{SessionEvent, TurnId, breaker::Admits};
use storage::{
    StorageError, Tx,
    session::{
        sessions_lock::LockedSession,
        turns_resume::{Deferred, turns_defer},
    },
};

use super::{
    resume::{Due, due},
    starter::{CONFIG_LOOK_MS, Starter, Starting, millis, possible},
};
use crate::{
    breaker::{Pass, standing},
    providers::Effects,
    store::{TurnName, claim::OpenTurn},
};

/// What a turn in progress may do.
enum Then {
    GoOn,
    Probe,
    Wait(Duration),
}

impl Starter {
    /// Takes those out that wait, and writes when they look again. Gives the passes of those that try for others. The caller holds
    /// the sessions' locks.
    pub(super) async fn defer(
        &self,
        tx: &Tx,
        resume: &mut Vec<(LockedSession, OpenTurn)>,
        starting: &mut Starting,
    ) -> Result<HashMap<TurnName, Pass>, StorageError> {
        let then: Vec<Then> = resume.iter().map(|(session, turn)| self.then(session, turn)).collect();
        let asked = resume.iter().zip(&then).filter(|(_, then)| matches!(then, Then::Probe));
        let asked: Vec<(&str, TurnId)> = asked.map(|((_, turn), _)| (&*turn.provider, turn.id)).collect();
        let mut taken = self.breakers.probe(tx, &asked, &mut starting.events).await?.into_iter();
        let mut passes = HashMap::new();
        let mut deferred = Vec::new();
        let mut then = then.into_iter();
        resume.retain(|(session, turn)| {
            let wait = match then.next().expect("one for each turn") {
                Then::GoOn => return true,
                Then::Wait(wait) => wait,
                Then::Probe => match taken.next().expect("an answer for each that asked") {
                    Ok(pass) => {
                        passes.insert((turn.account.clone(), turn.id), pass);
                        return true;
                    }
                    Err(wait) => wait,
                },
            };
            let state = session.facts.state().on(SessionEvent::Deferred);
            deferred.extend(possible(state, session, Some(turn.id)).map(|state| Deferred {
                session: session.name(),
                phase: state.phase,
                wake_ms: millis(wait),
            }));
            false
        });
        turns_defer(tx, &deferred).await?;
        Ok(passes)
    }

    fn then(&self, session: &LockedSession, turn: &OpenTurn) -> Then {
        let driver = self.drivers.get(&turn.provider);
        let effects = driver.map_or(Effects::GatewayOnly, |driver| driver.effects);
        match due(
            turn.state,
            turn.ended_with().is_some(),
            session.facts.closed,
            session.facts.stopping,
            effects,
        ) {
            Due::Abort | Due::End => Then::GoOn,
            Due::Send | Due::LookUp if driver.is_none() => {
                Then::Wait(Duration::from_millis(CONFIG_LOOK_MS.unsigned_abs()))
            }
            // The provider's record is read, and no call is made.
            Due::LookUp => Then::GoOn,
            Due::Send => match standing(turn.breaker).admits(Some(turn.id.uuid())) {
                Admits::Call => Then::GoOn,
                Admits::Probe => Then::Probe,
                Admits::Wait(look) if turn.failed_epoch.is_some() => Then::Wait(self.breakers.after_others(look)),
                Admits::Wait(look) => Then::Wait(look),
            },
        }
    }
}
