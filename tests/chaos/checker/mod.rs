//! Decides by what was written down whether the invariants of docs/reliability.md held. It knows nothing of how a campaign
//! runs: it reads the [`Records`] and the database, and says what must not be. One file for a group of invariants, each a
//! pure function over [`Evidence`], tested with records that are made up.
//!
//! Some things must hold at any moment, others only when everything has come to rest: a notification that nobody has
//! delivered yet is not lost. Which is which stands with each group.

mod accounts;
mod effects;
mod evidence;
#[cfg(test)]
mod fabricated;
mod growth;
mod leases;
mod order;
mod outcomes;
mod secrets;
mod sessions;
mod turns;

use std::fmt::{self, Display};

use evidence::{Evidence, Rows};

use crate::records::Records;

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Violation {
    /// `I1` … `I17`, as in docs/reliability.md.
    pub(crate) invariant: &'static str,
    /// What must hold.
    pub(crate) expected: &'static str,
    /// The rows, requests or lines that show that it does not.
    pub(crate) found: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.invariant, self.expected, self.found)
    }
}

type Check = fn(&Evidence<'_>) -> Vec<Violation>;

/// These hold at any moment.
const ALWAYS: &[Check] = &[
    outcomes::at_most_one,
    outcomes::nothing_unasked,
    outcomes::nothing_out_of_reach,
    sessions::generations,
    sessions::done_closes,
    sessions::closed_for_good,
    turns::one_at_a_time,
    turns::newest_taken,
    turns::taken_under_its_lease,
    turns::recorded_as_answered,
    effects::calls_once,
    effects::effects_once,
    effects::replies_once,
    effects::messages_once,
    effects::keys_once,
    order::turns_in_order,
    order::queues_in_order,
    order::calls_in_order,
    accounts::requests_and_answers,
    accounts::rows,
    secrets::nowhere,
];

/// These hold when everything has come to rest.
const AT_REST: &[Check] = &[
    outcomes::nothing_lost,
    effects::replies_posted,
    leases::outbox_drained,
    leases::nobody_holds_anything,
    growth::back_to_the_beginning,
    growth::no_open_transactions,
];

/// All that is found, when everything has come to rest. The error is for what could not be looked at.
pub(crate) async fn check(records: &Records) -> anyhow::Result<Vec<Violation>> {
    let rows = Rows::load(records).await?;
    Ok(judge(&Evidence::new(records, &rows, true), &[ALWAYS, AT_REST]))
}

/// What is found while a campaign runs: the first thing that is wrong ends it, where one looks for no more.
pub(crate) async fn check_meanwhile(records: impl Fn() -> Records) -> anyhow::Result<Vec<Violation>> {
    let rows = Rows::load(&records()).await?;
    // Taken anew: what the rows come from was written down before they were.
    Ok(judge(&Evidence::new(&records(), &rows, false), &[ALWAYS]))
}

fn judge(evidence: &Evidence<'_>, checks: &[&[Check]]) -> Vec<Violation> {
    let mut all: Vec<Violation> = checks
        .iter()
        .flat_map(|group| group.iter())
        .flat_map(|check| check(evidence))
        .collect();
    all.sort();
    all.dedup();
    all
}
