//! A thousand seeds of the simulation, the seeds that failed once, and the check that it can fail.

use crate::simulation::{bugs::Bug, run_many, simulate, simulate_with};

/// Seeds that once broke an invariant, each with its finding. They run first.
const FAILED_ONCE: &[(u64, &str)] = &[
    (
        467_484,
        "a call for the status of a task that has no row: the tool refuses it, its model had no answer",
    ),
    (
        507_605,
        "two turns in a row were stopped before their calls: the check expected the second to be told of",
    ),
    (
        521_238,
        "a steer that was carried into the next generation, before a new one: the check compared their positions as stored",
    ),
    (
        529_613,
        "the same, while the carried one waited: the check expected it before the new one",
    ),
    (
        9_029,
        "a branch ended in the transaction that stopped its parent's turn: the check expected its result behind the stop",
    ),
    (
        1_647,
        "a dead letter of mail was redriven before the sweep had settled the mail: it bounced, and then a turn had it",
    ),
];

/// Seeds of every test run. `make chaos SIM=…` runs more.
const SEEDS: u64 = 1_000;
/// A built-in mistake is found within so many seeds.
const SEEDS_TO_FIND: u64 = 4_000;

#[test]
fn what_failed_once_does_not_fail_again() {
    for (seed, what) in FAILED_ONCE {
        if let Err(violation) = simulate(*seed) {
            panic!("{violation}\nthis seed had found: {what}");
        }
    }
}

#[test]
fn a_thousand_seeds_keep_every_promise() {
    let many = match run_many(0, SEEDS, threads()) {
        Ok(many) => many,
        Err(violation) => panic!("{violation}"),
    };
    assert_eq!(many.seeds, SEEDS);
    // Runs without events would also hold every invariant.
    let counts = many.counts;
    for (what, count) in [
        ("turns", counts.turns),
        ("turns begun with the record of another", counts.gone_on),
        ("batches by known routes", counts.routed),
        ("turns carried on", counts.resumed),
        ("late writers refused", counts.stale),
        ("races for a session", counts.raced),
        ("crashes", counts.crashes),
        ("leases lost", counts.leases_lost),
        ("other faults", counts.faults),
        ("lost answers", counts.answers_lost),
        ("effects of tools", many.effects),
        ("turns stopped on request", counts.stopped),
        ("calls dropped on request", counts.dropped),
        ("turns of several items", counts.runs),
        ("sessions parked behind a stopped turn", counts.parked),
        ("sessions parked for a run", counts.collecting),
        ("sessions parked for their provider", counts.without_provider),
        ("gates opened by items", counts.opened),
        ("questions ended by persons", counts.answered),
        ("answers too late", counts.too_late),
        ("calls approved", counts.approved),
        ("timers fired", counts.fired),
        ("edits of queues", counts.edited),
        ("edits refused", counts.refused),
        ("sessions parked behind a pause", counts.paused),
        ("generations reset", counts.reset),
        ("generations rotated", counts.rotated),
        ("branches made", counts.spawned),
        ("branches that ended early", counts.cut_short),
        ("items with results of branches", counts.folded),
        ("replays made", counts.replayed),
        ("calls of replays answered from the record", counts.replay_calls),
        ("pieces of mail in turns", counts.mailed),
        ("pieces of mail taken during a turn", counts.pulled),
        ("pieces of mail read by persons", counts.read),
        ("pieces of mail that bounced", counts.bounced),
        ("pieces of mail answered by code", counts.replied),
        ("tasks freed", counts.freed),
        ("blocks refused", counts.rings),
        ("children", counts.children),
    ] {
        assert!(count > SEEDS / 200, "only {count} {what} in {SEEDS} seeds");
    }
}

#[test]
fn a_seed_replays_identically() {
    for seed in 0..100 {
        let run = || simulate(seed).unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn every_mistake_on_the_way_is_found() {
    are_found(&Bug::OF_THE_WAY);
}

#[test]
fn every_mistake_of_control_is_found() {
    are_found(&Bug::OF_CONTROL);
}

#[test]
fn every_mistake_of_sessions_is_found() {
    are_found(&Bug::OF_SESSIONS);
}

#[test]
fn every_mistake_of_people_is_found() {
    are_found(&Bug::OF_PEOPLE);
}

fn are_found(mistakes: &[Bug]) {
    std::thread::scope(|scope| {
        for bug in mistakes.iter().copied() {
            scope.spawn(move || {
                let found = (0..SEEDS_TO_FIND).find_map(|seed| simulate_with(seed, Some(bug)).err());
                let found = found.unwrap_or_else(|| panic!("{bug:?} was not found in {SEEDS_TO_FIND} seeds"));
                assert!(!found.steps.is_empty(), "{found}");
            });
        }
    });
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
