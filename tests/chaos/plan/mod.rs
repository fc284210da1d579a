//! The schedule of a campaign, drawn from the seed before anything runs. Pure. Facts of the run (notifications in flight, restart
//! times) are not part of it; so the same schedule does not hit the same instruction twice, but it offers and breaks the same
//! things at the same times.

mod faults;
mod offers;

use std::fmt::{self, Display};

pub(crate) use faults::{Fault, KINDS, Link, NetworkHarm, Oversized, Process, ProviderFailure};
pub(crate) use offers::{
    ACCOUNTS, AGENTS, APPROVED, ASKED, ASSIGNED, JUDGED, OF_PERSONS, ORCHESTRATORS, PLANNED, PlannedOffer, REVIEWED,
    TASKS, account_id, canary,
};

/// Interval of faults, evenly spread. Faults last longer and overlap.
const GAP_MS: (u64, u64) = (150, 950);
/// Interval of offers.
const OFFER_GAP_MS: (u64, u64) = (40, 320);
/// Offers continue this long after the last fault, so that the end of the campaign has work.
const AFTERWARDS_MS: u64 = 1_500;
/// Time for work before the first fault.
const BEFOREHAND_MS: u64 = 1_500;

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) faults: Vec<PlannedFault>,
    pub(crate) offers: Vec<PlannedOffer>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlannedFault {
    pub(crate) number: usize,
    pub(crate) at_ms: u64,
    /// Its name in [`KINDS`].
    pub(crate) kind: &'static str,
    pub(crate) fault: Fault,
}

impl Plan {
    /// `kinds`: only these, or all if empty. The error names an unknown one.
    pub(crate) fn new(seed: u64, faults: usize, kinds: &[String]) -> Result<Plan, String> {
        let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        if let Some(unknown) = kinds.iter().find(|kind| !known.contains(&faults::parts(kind).0)) {
            return Err(format!("no fault is called {unknown}; there are {}", known.join(", ")));
        }
        let faults = faults::plan(seed, faults, kinds);
        let end_ms = faults.last().map_or(BEFOREHAND_MS, |last| last.at_ms) + AFTERWARDS_MS;
        Ok(Plan {
            seed,
            offers: offers::plan(seed, end_ms),
            faults,
        })
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} faults, {} offers",
            self.seed,
            self.faults.len(),
            self.offers.len()
        )?;
        for PlannedFault {
            number, at_ms, fault, ..
        } in &self.faults
        {
            writeln!(f, "{:>9.3} s  fault {number:>5}  {fault:?}", seconds(*at_ms))?;
        }
        for (number, offer) in self.offers.iter().enumerate() {
            writeln!(
                f,
                "{:>9.3} s  offer {number:>5}  {} {:?}",
                seconds(offer.at_ms),
                account_id(offer.account),
                offer.what
            )?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a campaign is no thousand years long")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        let plan = |seed| Plan::new(seed, 500, &[]).unwrap();
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1).faults, plan(2).faults);
        assert_ne!(plan(1).offers, plan(2).offers);
    }

    #[test]
    fn a_long_schedule_has_every_kind_of_fault() {
        let plan = Plan::new(1, 2_000, &[]).unwrap();
        assert_eq!(plan.faults.len(), 2_000);
        let found: BTreeSet<&str> = plan.faults.iter().map(|planned| planned.kind).collect();
        let known: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(found, known);
        assert!(plan.faults.is_sorted_by_key(|planned| planned.at_ms));
        assert!(plan.offers.is_sorted_by_key(|planned| planned.at_ms));
    }

    #[test]
    fn kinds_choose() {
        let plan = Plan::new(1, 50, &["kill".to_owned(), "nats_wipe".to_owned()]).unwrap();
        assert!(
            plan.faults
                .iter()
                .all(|planned| ["kill", "nats_wipe"].contains(&planned.kind))
        );
        let plan = Plan::new(1, 50, &["kill:delivery-1".to_owned()]).unwrap();
        assert!(
            plan.faults
                .iter()
                .all(|planned| format!("{:?}", planned.fault).contains("delivery-1"))
        );
        let error = Plan::new(1, 50, &["earthquake".to_owned()]).unwrap_err();
        assert!(error.contains("earthquake") && error.contains("nats_wipe"), "{error}");
    }
}
