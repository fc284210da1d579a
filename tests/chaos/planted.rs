//! Tests the campaign itself: for every planted bug (`planted/{bug}.patch`) it runs a campaign with the faults that reveal the bug,
//! in processes that have it. The campaign ends with the first violation; without one after [`FAULTS_MAX`] faults, the checker
//! lacks a rule. The same campaign without the bug must find nothing.
//!
//! It runs only in the copy of the sources with the bugs: `planted/run` creates, builds and runs it.

use std::{
    collections::BTreeSet,
    env::current_exe,
    path::Path,
    process::{ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::process::Command;

use crate::{arguments::PlantedArguments, report::Verdict};

/// Names the bugs of a process, with commas between (`planted/planted.rs`).
const VARIABLE: &str = "SIGNALBOX_PLANTED";
/// A file of the copy; if it exists, these sources have the bugs.
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/domain/src/planted.rs");
const FAULTS_MAX: usize = 200;
/// The clean campaign has a few faults more than the bug needed.
const FAULTS_MORE: usize = 5;

/// The hunt for a bug.
struct Hunt {
    /// The name of its patch.
    bug: &'static str,
    /// Kinds, as for `--kinds`.
    kinds: &'static str,
    seen: Seen,
}

/// When the bug shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Within seconds, almost always in the first check, with this violation.
    AtOnce { rule: &'static str },
    /// While the campaign runs, with this violation.
    Meanwhile { rule: &'static str },
    /// When the system is idle, since a lost item may have been late. So many faults suffice.
    AtRest { faults: usize },
}

/// The start of its violation.
const fn at_once(rule: &'static str) -> Seen {
    Seen::AtOnce { rule }
}

const fn meanwhile(rule: &'static str) -> Seen {
    Seen::Meanwhile { rule }
}

const fn hunt(bug: &'static str, kinds: &'static str, seen: Seen) -> Hunt {
    Hunt { bug, kinds, seen }
}

impl Hunt {
    fn faults(&self) -> usize {
        match self.seen {
            Seen::AtOnce { .. } | Seen::Meanwhile { .. } => FAULTS_MAX,
            Seen::AtRest { faults } => faults,
        }
    }
}

const HUNTS: &[Hunt] = &[
    hunt("dedup_skipped", "repeat", at_once("I1 ")),
    hunt(
        "place_first",
        "crash_point:resolver.batch_written",
        Seen::AtRest { faults: 20 },
    ),
    // Resumes shortly after another replica took the turn over, with an answer in hand.
    hunt(
        "fence_dropped",
        "freeze_at_point:delivery.turn_answered+4600",
        meanwhile("I4 "),
    ),
    hunt(
        "local_clock",
        "repeat",
        meanwhile("I4 a session has one provider call in flight"),
    ),
    hunt("lease_eternal", "kill:delivery", Seen::AtRest { faults: 6 }),
    hunt("generation_reused", "repeat", meanwhile("I9 after done no turn begins")),
    hunt("route_believed", "repeat", meanwhile("I1 ")),
    hunt("once_key_dropped", "replay", at_once("I5 ")),
    hunt("unknown_retried", "commit_lost:tool-gateway", meanwhile("I5 ")),
    hunt(
        "calls_unordered",
        "statements_fail",
        meanwhile("I8 the calls of an answer"),
    ),
    hunt("outbox_by_position", "nats_kill", Seen::AtRest { faults: 25 }),
    hunt(
        "started_forgotten",
        "crash_point:delivery.claim_committed",
        Seen::AtRest { faults: 20 },
    ),
    hunt("queue_lost", "provider_silent", meanwhile("I1 ")),
    hunt("walls_dropped", "repeat", at_once("I12 ")),
    hunt("reply_twice", "replay", at_once("I11 ")),
    hunt("late_posted", "repeat", at_once("I9 what is said too late")),
    hunt("done_keeps_session", "repeat", at_once("I9 ")),
    hunt("newest_first", "burst", at_once("I8 turns run in the order")),
    hunt("authors_merged", "repeat", at_once("I24 a run")),
    hunt("successor_stopped", "repeat", meanwhile("I19 a turn is stopped only")),
    hunt("written_late", "repeat", meanwhile("I19 the agent of a stopped")),
    hunt("gate_unread", "repeat", meanwhile("I20 nothing starts")),
    hunt("queue_steered_away", "repeat", at_once("I25 ")),
    hunt("answered_twice", "repeat", at_once("I21 a question is answered")),
    hunt("approval_unread", "repeat", at_once("I27 a call that needs")),
    hunt("plan_unread", "repeat", at_once("I27 nothing is changed")),
    hunt("stage_skipped", "repeat", at_once("I27 a task with a review")),
    hunt(
        "close_keeps_thread",
        "repeat",
        meanwhile("I28 the first turn of a generation"),
    ),
    // An agent's reply is told again in the thread that gave it.
    hunt(
        "extract_past_ignored",
        "repeat",
        meanwhile("I32 a thread is told nothing twice"),
    ),
    // Of two branches that end at once in two replicas, neither brings the results of both.
    hunt("fold_unlocked", "repeat", Seen::AtRest { faults: 25 }),
    // Of two memories that are written at once, one takes the place of none.
    hunt("memory_unlocked", "repeat", Seen::AtRest { faults: 25 }),
    hunt("unblock_lost", "repeat", Seen::AtRest { faults: 25 }),
    hunt("timer_twice", "repeat", at_once("I22 what is answered or fired")),
    hunt("hold_unread", "repeat", at_once("I20 no turn begins behind")),
    hunt(
        "withdrawn_delivered",
        "repeat",
        meanwhile("I25 an item that was withdrawn"),
    ),
    hunt("all_probe", "provider_quota", meanwhile("I23 behind an open breaker")),
    hunt("slice_skipped", "repeat", Seen::AtRest { faults: 4 }),
    hunt("key_ignored", "key_reused", at_once("I17 ")),
    hunt("secret_logged", "repeat", at_once("I14 ")),
];

/// The used fields of a campaign's report.
#[derive(Deserialize)]
struct Told {
    faults_fired: usize,
    stuck: Vec<String>,
    examples: Vec<String>,
}

impl Told {
    fn first(&self) -> &str {
        let all = self.examples.iter().chain(&self.stuck);
        all.map(String::as_str).next().unwrap_or("nothing was wrong")
    }
}

/// Hunts the requested bugs, one line each. Fails if one was not found, or another violation was.
#[expect(clippy::print_stdout, reason = "what is found is what the program is for")]
pub(crate) async fn run(arguments: &PlantedArguments) -> anyhow::Result<ExitCode> {
    if !Path::new(MODULE).exists() {
        bail!("this build has no bugs on purpose: make chaos PLANTED=…");
    }
    let chosen = chosen(&arguments.bugs)?;
    if arguments.together {
        return together(&chosen, arguments.seed).await;
    }
    let mut missed = 0;
    for hunt in chosen {
        let begun = Instant::now();
        let told = campaign(hunt, arguments.seed, hunt.faults(), Some(hunt.bug)).await?;
        let (found, took) = (told.is_broken, begun.elapsed().as_secs());
        missed += usize::from(!found);
        let word = if found { "found" } else { "MISSED" };
        println!(
            "{:<20} {word} after {} faults, {took} s: {}",
            hunt.bug,
            told.told.faults_fired,
            told.told.first()
        );
        if !arguments.without {
            continue;
        }
        let faults = told.told.faults_fired + FAULTS_MORE;
        let clean = campaign(hunt, arguments.seed, faults, None).await?;
        missed += usize::from(clean.is_broken);
        let word = if clean.is_broken { "BROKEN" } else { "clean" };
        println!(
            "{:<20} {word} without it after {} faults: {}",
            "",
            clean.told.faults_fired,
            clean.told.first()
        );
    }
    Ok(if missed == 0 {
        ExitCode::SUCCESS
    } else {
        Verdict::Broken.into()
    })
}

/// One campaign with all of them, which must find each by its own rule.
#[expect(clippy::print_stdout, reason = "what is found is what the program is for")]
async fn together(hunts: &[&Hunt], seed: u64) -> anyhow::Result<ExitCode> {
    let mut rules = Vec::new();
    for hunt in hunts {
        let (Seen::AtOnce { rule } | Seen::Meanwhile { rule }) = hunt.seen else {
            bail!("{} shows itself only at rest: look for it alone", hunt.bug);
        };
        rules.push(rule);
    }
    let begun = Instant::now();
    let kinds: BTreeSet<&str> = hunts.iter().map(|hunt| hunt.kinds).collect();
    let kinds = kinds.into_iter().collect::<Vec<_>>().join(",");
    let bugs: Vec<&str> = hunts.iter().map(|hunt| hunt.bug).collect();
    let until: Vec<&str> = rules.iter().flat_map(|rule| ["--until-found", rule]).collect();
    let ended = start(&kinds, &until, seed, FAULTS_MAX, &bugs.join(",")).await?;
    let mut missed = 0;
    for (hunt, rule) in hunts.iter().zip(rules) {
        let example = ended.told.examples.iter().find(|line| line.starts_with(rule));
        missed += usize::from(example.is_none());
        let word = if example.is_some() { "found" } else { "MISSED" };
        let shown = example.map_or(rule, String::as_str);
        println!(
            "{:<20} {word} after {} faults at most: {shown}",
            hunt.bug, ended.told.faults_fired
        );
    }
    println!("{} s", begun.elapsed().as_secs());
    Ok(if missed == 0 {
        ExitCode::SUCCESS
    } else {
        Verdict::Broken.into()
    })
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Hunt>> {
    match names {
        [only] if only == "all" => Ok(HUNTS.iter().collect()),
        [only] if only == "quick" => Ok(HUNTS
            .iter()
            .filter(|hunt| matches!(hunt.seen, Seen::AtOnce { .. }))
            .collect()),
        names => names
            .iter()
            .map(|name| {
                let mut hunts = HUNTS.iter();
                hunts
                    .find(|hunt| hunt.bug == name)
                    .with_context(|| format!("no bug is called {name}"))
            })
            .collect(),
    }
}

struct Ended {
    is_broken: bool,
    told: Told,
}

async fn campaign(hunt: &Hunt, seed: u64, faults: usize, bug: Option<&str>) -> anyhow::Result<Ended> {
    start(hunt.kinds, &["--until-broken"], seed, faults, bug.unwrap_or_default()).await
}

/// A campaign is a separate process, whose children get the bugs from its environment.
async fn start(kinds: &str, until: &[&str], seed: u64, faults: usize, bugs: &str) -> anyhow::Result<Ended> {
    let mut program = Command::new(current_exe().context("this program has no path")?);
    program
        .args(["--json", "--kinds", kinds])
        .args(until)
        .args(["--seed", &seed.to_string(), "--faults", &faults.to_string()])
        .env(VARIABLE, bugs)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = program
        .stderr(Stdio::inherit())
        .output()
        .await
        .context("could not run a campaign")?;
    let told = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the campaign for {bugs:?} ended with {} and no report", output.status))?;
    Ok(Ended {
        is_broken: output.status.code() == Some(1),
        told,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn every_bug_is_looked_for_with_faults_that_exist() {
        let patches = Path::new(env!("CARGO_MANIFEST_DIR")).join("chaos/planted");
        let files = patches.read_dir().unwrap().map(|file| file.unwrap().path());
        let bugs: BTreeSet<String> = files
            .filter(|file| file.extension().is_some_and(|extension| extension == "patch"))
            .map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            HUNTS.iter().map(|hunt| hunt.bug.to_owned()).collect::<BTreeSet<_>>(),
            bugs
        );
        for hunt in HUNTS {
            assert!(hunt.faults() <= FAULTS_MAX, "{}", hunt.bug);
            let plan = Plan::new(1, 20, &[hunt.kinds.to_owned()]).unwrap();
            assert_eq!(plan.faults.len(), 20, "{}", hunt.bug);
        }
    }
}
