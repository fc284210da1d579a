//! The report of a campaign, as text and JSON, and the verdict. A fault without a hit does not count as fired, and a campaign with
//! too few events is invalid: neither passed nor failed.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    process::ExitCode,
};

use serde::Serialize;
use sqlx::Row;

use crate::{
    campaign::{Campaign, Outcome},
    checker::Violation,
    machine::Given,
    plan::{KINDS, Plan},
    records::{Answer, CallEnd, Sample},
};

/// Share of scheduled faults that must hit.
const FIRED_PERCENT_MIN: usize = 60;
/// Share of offers that must be answered.
const ANSWERED_PERCENT_MIN: usize = 98;
/// Share of notifications that must be delivered, of those that no one has cancelled: providers refuse some calls permanently.
const DELIVERED_PERCENT_MIN: usize = 90;
/// Share of ended notifications that must not be cancelled, or so many of them for each scheduled fault. Closing a task, handing it over
/// and stopping a turn cancel; the slower the machine is, the more waits then. I19 and I25 judge the reason of each, but a campaign that
/// cancels most of its work has tried little else.
const WANTED_PERCENT_MIN: usize = 45;
const WANTED_PER_FAULT: usize = 2;
/// Violations that are printed; the others are counted.
const VIOLATIONS_SHOWN: usize = 40;

#[derive(Default, Serialize)]
pub(crate) struct Report {
    seed: u64,
    faults_scheduled: usize,
    faults_fired: usize,
    kinds: Vec<KindCount>,
    /// Processes that were frozen with a provider call in flight.
    zombies_with_work: usize,
    offers: BTreeMap<&'static str, usize>,
    /// State → how many notifications ended in it.
    notifications: BTreeMap<String, usize>,
    /// State → turns; for stopped ones, what stopped them.
    turns: BTreeMap<String, usize>,
    /// What agents wrote after their turns had been stopped.
    late_writes: BTreeMap<String, usize>,
    /// Questions, timers and holds, with what became of them.
    control: BTreeMap<String, usize>,
    provider_calls: BTreeMap<&'static str, usize>,
    api_answers_checked: usize,
    /// Service → the maximum memory of one of its processes.
    memory_peak_mib: BTreeMap<String, usize>,
    files_peak: BTreeMap<String, usize>,
    /// Service processes that ended by themselves.
    surprises: Vec<String>,
    stuck: Vec<String>,
    given: Given,
    /// Stuck work could not have finished on this machine.
    had_no_time: bool,
    /// Why there is no verdict.
    invalid: Vec<String>,
    violations: BTreeMap<&'static str, usize>,
    examples: Vec<String>,
    took_s: u64,
    quiesce_took_ms: u128,
    faults_per_s: f64,
}

#[derive(Serialize)]
struct KindCount {
    kind: &'static str,
    rows: &'static str,
    scheduled: usize,
    fired: usize,
    /// Hits of the fault: connections cut, statements failed, requests failed.
    hits: usize,
}

impl Report {
    pub(crate) async fn of(
        plan: &Plan,
        campaign: &Campaign,
        outcome: &Outcome,
        violations: &[Violation],
    ) -> anyhow::Result<Report> {
        const NOTIFICATIONS: &str = "select state, count(*) from notification group by 1";
        const TURNS: &str =
            "select case when error_class in ('stopped', 'steered', 'paused') then error_class else state end, count(*)
            from turn group by 1";
        const CONTROL: &str = "select 'question ' || state, count(*) from question group by 1
            union all select 'timer ' || state, count(*) from timer group by 1
            union all select 'hold', count(*) from hold having count(*) > 0";
        const LATE: &str = "select state, count(*) from tool_call where ordinal = 0 group by 1";
        let observer = &campaign.system.observer;
        let counts = async |sql: &'static str| -> anyhow::Result<BTreeMap<String, usize>> {
            let rows = sqlx::query(sql).fetch_all(observer).await?;
            let count = |row: &sqlx::postgres::PgRow| usize::try_from(row.get::<i64, _>(1)).unwrap_or_default();
            Ok(rows.iter().map(|row| (row.get(0), count(row))).collect())
        };
        let fired = outcome.hits.values().filter(|hits| **hits > 0).count();
        let mut by_invariant: BTreeMap<&'static str, usize> = BTreeMap::new();
        violations
            .iter()
            .for_each(|one| *by_invariant.entry(one.invariant).or_default() += 1);
        let seconds = outcome.took.as_secs_f64() - outcome.quiesce_took.as_secs_f64();
        let mut report = Report {
            seed: plan.seed,
            faults_scheduled: plan.faults.len(),
            faults_fired: fired,
            kinds: kinds(plan, outcome),
            zombies_with_work: outcome.zombies_with_work,
            offers: offers(outcome),
            notifications: counts(NOTIFICATIONS).await?,
            turns: counts(TURNS).await?,
            late_writes: counts(LATE).await?,
            control: counts(CONTROL).await?,
            provider_calls: calls(outcome),
            api_answers_checked: outcome.records.answers.len(),
            memory_peak_mib: peaks(outcome, |sample| sample.memory_kib / 1024),
            files_peak: peaks(outcome, |sample| sample.files),
            surprises: outcome.surprises.clone(),
            stuck: outcome.stuck.clone(),
            given: outcome.given,
            had_no_time: outcome.had_no_time(),
            invalid: Vec::new(),
            violations: by_invariant,
            examples: examples(violations),
            took_s: outcome.took.as_secs(),
            quiesce_took_ms: outcome.quiesce_took.as_millis(),
            #[expect(clippy::cast_precision_loss, reason = "a number of faults")]
            faults_per_s: fired as f64 / seconds,
        };
        report.invalid = report.too_little();
        Ok(report)
    }

    fn too_little(&self) -> Vec<String> {
        let mut why = Vec::new();
        let mut floor = |what: &str, found: usize, of: usize, percent: usize| {
            if found * 100 < of * percent {
                why.push(format!("{found} of {of} {what}: less than {percent} %"));
            }
        };
        floor(
            "scheduled faults hit",
            self.faults_fired,
            self.faults_scheduled,
            FIRED_PERCENT_MIN,
        );
        let unanswered = self.offers.get("without an answer").copied().unwrap_or_default();
        let offers: usize = self.offers.values().sum();
        floor(
            "offers were answered",
            offers - unanswered,
            offers,
            ANSWERED_PERCENT_MIN,
        );
        let delivered = self.notifications.get("delivered").copied().unwrap_or_default();
        let without = |left_out: &[&str]| -> usize {
            let counted = self.notifications.iter();
            let counted = counted.filter(|(state, _)| !left_out.contains(&state.as_str()));
            counted.map(|(_, count)| count).sum()
        };
        let ended = without(&["refused"]);
        let wanted = without(&["refused", "cancelled"]);
        if wanted < self.faults_scheduled * WANTED_PER_FAULT {
            floor("notifications were not cancelled", wanted, ended, WANTED_PERCENT_MIN);
        }
        floor(
            "notifications that were not cancelled were delivered",
            delivered,
            wanted,
            DELIVERED_PERCENT_MIN,
        );
        if delivered == 0 {
            why.push("nothing was delivered".to_owned());
        }
        if self.had_no_time {
            why.push(format!("{}: what is stuck had no time", self.given));
        }
        why
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if !self.violations.is_empty() || (!self.stuck.is_empty() && !self.had_no_time) {
            Verdict::Broken
        } else if !self.invalid.is_empty() {
            Verdict::Invalid
        } else {
            Verdict::Held
        }
    }
}

/// The exit code of a verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Held,
    Broken,
    Invalid,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> ExitCode {
        match verdict {
            Verdict::Held => ExitCode::SUCCESS,
            Verdict::Broken => ExitCode::from(1),
            Verdict::Invalid => ExitCode::from(3),
        }
    }
}

/// Some violations of each rule first, so that a frequent one does not hide another.
fn examples(violations: &[Violation]) -> Vec<String> {
    let mut seen: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut placed: Vec<(usize, &Violation)> = violations
        .iter()
        .map(|one| {
            let before = seen.entry((one.invariant, one.expected)).or_default();
            *before += 1;
            (*before, one)
        })
        .collect();
    placed.sort_by_key(|(place, _)| *place);
    placed
        .iter()
        .take(VIOLATIONS_SHOWN)
        .map(|(_, one)| one.to_string())
        .collect()
}

fn kinds(plan: &Plan, outcome: &Outcome) -> Vec<KindCount> {
    let count = |name: &str| {
        let of_kind = || plan.faults.iter().filter(move |planned| planned.kind == name);
        let hits = || of_kind().map(|planned| outcome.hits.get(&planned.number).copied().unwrap_or_default());
        (of_kind().count(), hits().filter(|hits| *hits > 0).count(), hits().sum())
    };
    let all = KINDS.iter().map(|kind| {
        let (scheduled, fired, hits) = count(kind.name);
        KindCount {
            kind: kind.name,
            rows: kind.rows,
            scheduled,
            fired,
            hits,
        }
    });
    all.filter(|counted| counted.scheduled > 0).collect()
}

fn offers(outcome: &Outcome) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for offer in &outcome.records.offers {
        let answered = |is: fn(&Answer) -> bool| offer.tries.iter().any(|tried| is(&tried.answer));
        let word = if answered(|answer| *answer == Answer::Accepted) {
            "accepted"
        } else if answered(|answer| matches!(answer, Answer::Refused { .. })) {
            "refused"
        } else {
            "without an answer"
        };
        *counts.entry(word).or_default() += 1;
    }
    counts
}

fn peaks(outcome: &Outcome, of: fn(&Sample) -> usize) -> BTreeMap<String, usize> {
    let mut peaks = BTreeMap::new();
    for sample in &outcome.records.samples {
        let service = sample.process.rsplit_once('-').map_or("", |(service, _)| service);
        let peak: &mut usize = peaks.entry(service.to_owned()).or_default();
        *peak = (*peak).max(of(sample));
    }
    peaks
}

fn calls(outcome: &Outcome) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for call in &outcome.records.calls {
        let word = match call.end {
            CallEnd::Open => "open",
            CallEnd::Text { .. } => "text",
            CallEnd::Calls { .. } => "tool calls",
            CallEnd::Failure { .. } => "failure",
            CallEnd::Aborted => "aborted",
        };
        *counts.entry(word).or_default() += 1;
    }
    counts
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} of {} faults fired, {:.1} a second, in {} s (at rest after {} ms)",
            self.seed, self.faults_fired, self.faults_scheduled, self.faults_per_s, self.took_s, self.quiesce_took_ms
        )?;
        writeln!(
            f,
            "\n{:<20} {:<12} {:>9} {:>6} {:>6}",
            "fault", "rows", "scheduled", "fired", "hits"
        )?;
        for count in &self.kinds {
            writeln!(
                f,
                "{:<20} {:<12} {:>9} {:>6} {:>6}",
                count.kind, count.rows, count.scheduled, count.fired, count.hits
            )?;
        }
        writeln!(f, "\nfrozen with a call in flight: {}", self.zombies_with_work)?;
        writeln!(f, "offers          {}", list(&self.offers))?;
        writeln!(f, "notifications   {}", list(&self.notifications))?;
        writeln!(f, "turns           {}", list(&self.turns))?;
        writeln!(f, "late writes     {}", list(&self.late_writes))?;
        writeln!(f, "asked and set   {}", list(&self.control))?;
        writeln!(f, "provider calls  {}", list(&self.provider_calls))?;
        writeln!(
            f,
            "answers of the API that were read for others' words: {}",
            self.api_answers_checked
        )?;
        writeln!(f, "most memory, MiB {}", list(&self.memory_peak_mib))?;
        writeln!(f, "most open files  {}", list(&self.files_peak))?;
        writeln!(f, "{}", self.given)?;
        for (heading, lines) in [
            ("ended by themselves", &self.surprises),
            ("stuck", &self.stuck),
            ("no verdict", &self.invalid),
            ("violations", &self.examples),
        ] {
            if !lines.is_empty() {
                writeln!(f, "\n{heading}:")?;
                lines.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
            }
        }
        if !self.violations.is_empty() {
            writeln!(f, "\nby invariant: {}", list(&self.violations))?;
        }
        writeln!(
            f,
            "\n{}",
            match self.verdict() {
                Verdict::Held => "HELD: nothing lost, nothing doubled, no invariant broken",
                Verdict::Broken => "BROKEN",
                Verdict::Invalid => "INVALID: no verdict",
            }
        )
    }
}

fn list<K: Display, V: Display>(counts: &BTreeMap<K, V>) -> String {
    let parts: Vec<String> = counts.iter().map(|(word, count)| format!("{word} {count}")).collect();
    if parts.is_empty() {
        "none".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(had_no_time: bool) -> Report {
        Report {
            stuck: vec!["turns without an end".to_owned()],
            had_no_time,
            invalid: if had_no_time {
                vec!["no time".to_owned()]
            } else {
                Vec::new()
            },
            ..Report::default()
        }
    }

    #[test]
    fn what_is_stuck_is_a_finding_where_it_had_time() {
        assert_eq!(stuck(false).verdict(), Verdict::Broken);
        assert_eq!(stuck(true).verdict(), Verdict::Invalid);
    }

    #[test]
    fn what_is_lost_is_a_finding_on_every_machine() {
        let mut report = stuck(true);
        report.violations.insert("I1", 1);
        assert_eq!(report.verdict(), Verdict::Broken);
    }

    #[test]
    fn a_campaign_that_cancels_most_of_its_work_has_to_have_done_enough() {
        let of = |delivered: usize, cancelled: usize| {
            let counted = [("delivered", delivered), ("cancelled", cancelled)];
            let report = Report {
                faults_scheduled: 10,
                faults_fired: 10,
                notifications: counted.map(|(state, count)| (state.to_owned(), count)).into(),
                ..Report::default()
            };
            report.too_little().join(", ")
        };
        assert_eq!(of(19, 81), "19 of 100 notifications were not cancelled: less than 45 %");
        assert_eq!(of(20, 80), "");
        assert_eq!(of(9, 11), "");
    }
}
