//! I23: behind an open breaker, one call is in flight at a time, but for those whose time is over. Knows which turns try from their
//! claims and the ends of their calls, and not from the breaker's row.

use std::collections::BTreeMap;

use delivery::turn::work::Work;
use domain::TurnId;

use super::{Outcome, Witness};
use crate::simulation::{
    database::{Database, Millis},
    settings::Settings,
};

/// The turn that tries for a provider, the epoch in which it does, and since when.
pub(super) type Tries = BTreeMap<String, (TurnId, i64, Millis)>;

impl Witness {
    /// These turns were claimed, and are about to call.
    pub(crate) fn tried(&mut self, database: &Database, claimed: &[Work], settings: &Settings) {
        let time = settings.delivery.breaker_probe_ms_max.i64();
        for work in claimed.iter().filter(|work| work.pass.probes) {
            let (turn, epoch, now) = (work.turn.id, work.pass.epoch, database.now);
            let before = self.tries.insert(work.provider.clone(), (turn, epoch, now));
            let Some((other, of, since)) = before else { continue };
            if other != turn && of == epoch && now - since < time {
                let provider = &work.provider;
                self.breaks("I23", || {
                    format!(
                        "turn {turn} calls {provider} behind its open breaker at {now}, and turn {other} since {since}"
                    )
                });
            }
        }
    }

    /// The calls of these turns have ended.
    pub(super) fn tried_out(&mut self, written: &[Outcome]) {
        self.tries
            .retain(|_, (turn, _, _)| written.iter().all(|outcome| outcome.turn != *turn));
    }
}
