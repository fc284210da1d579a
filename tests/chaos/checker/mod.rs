//! Checks from the records whether the invariants of docs/reliability.md held. It does not know how a campaign runs: it reads the
//! [`Records`] and the database, and reports violations. One file for a group of invariants, each a pure function over
//! [`Evidence`], tested with fabricated records.
//!
//! Some invariants hold always, others only when the system is idle: a notification that is not yet delivered is not lost. Each
//! group says which.

mod accounts;
mod audit;
mod brakes;
mod branches;
mod breaker;
mod effects;
mod evidence;
#[cfg(test)]
mod fabricated;
mod growth;
mod holds;
mod leases;
mod order;
mod outcomes;
mod people;
mod personas;
mod persons;
mod questions;
mod replays;
mod resets;
mod secrets;
mod sessions;
mod timers;
mod told;
mod turns;

use std::fmt::{self, Display};

use evidence::{Evidence, Rows};

use crate::records::Records;

/// A violation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Violation {
    /// `I1` … `I39`, as in tests/chaos/README.md.
    pub(crate) invariant: &'static str,
    /// The invariant.
    pub(crate) expected: &'static str,
    /// The rows, requests or lines that show the violation.
    pub(crate) found: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.invariant, self.expected, self.found)
    }
}

type Check = fn(&Evidence<'_>) -> Vec<Violation>;

/// Invariants that hold always.
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
    order::runs_are_one,
    order::steers_first,
    brakes::stops_were_asked,
    brakes::stops_end_their_turn,
    brakes::nothing_after_a_stop,
    brakes::gates_hold,
    brakes::runs_are_due,
    brakes::nothing_dropped,
    holds::nothing_starts,
    holds::edits_stand,
    breaker::one_probe,
    breaker::nothing_failed,
    questions::ended_once,
    questions::answers_are_items,
    questions::approved_first,
    questions::none_of_closed_sessions,
    timers::fired_once,
    timers::none_after_the_end,
    resets::resets_were_asked,
    resets::threads_end_with_generations,
    branches::live_below_open_generations,
    branches::told_once,
    replays::without_effect,
    told::nothing_twice,
    told::past_known,
    personas::one_for_a_generation,
    personas::newest_at_the_beginning,
    people::in_one_turn,
    people::answered_once,
    people::told_of_at_most_once,
    people::memory_is_bounded,
    persons::in_its_conversation,
    persons::shown_to_them_only,
    accounts::requests_and_answers,
    accounts::rows,
    audit::as_recorded,
    audit::own_words,
    secrets::nowhere,
];

/// Invariants that hold when the system is idle.
const AT_REST: &[Check] = &[
    outcomes::nothing_lost,
    effects::replies_posted,
    leases::outbox_drained,
    order::turns_announced,
    brakes::gates_open_in_the_end,
    leases::nobody_holds_anything,
    questions::none_open,
    timers::none_waits,
    resets::resets_are_carried_out,
    branches::all_are_folded,
    replays::all_have_ended,
    people::all_settled,
    people::all_are_freed,
    audit::no_violation,
    audit::planted_is_found,
    growth::back_to_the_beginning,
    growth::no_open_transactions,
];

/// All violations, when the system is idle. An error means that the database could not be read.
pub(crate) async fn check(records: &Records) -> anyhow::Result<Vec<Violation>> {
    let rows = Rows::load(records).await?;
    Ok(judge(&Evidence::new(records, &rows, true), &[ALWAYS, AT_REST]))
}

/// Violations while a campaign runs, for a campaign that ends with the first one.
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
