//! Output: a line for each run as it ends, the table of goals, the medians, and the same as JSON.

use std::fmt::Write as _;

use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{figures::Figures, machine::Machine, shown::median, subject::Subject};

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) at: OffsetDateTime,
    pub(crate) took_s: u64,
    pub(crate) machine: Machine,
    pub(crate) repetitions: u32,
    pub(crate) rows: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) goals: Vec<Goal>,
    pub(crate) runs: Vec<Run>,
    /// The error of the last run, if any.
    pub(crate) failed: Option<String>,
}

impl Row {
    /// In the order of their runs.
    fn subjects(&self) -> Vec<&'static str> {
        let mut subjects = Vec::new();
        for run in &self.runs {
            if !subjects.contains(&run.subject) {
                subjects.push(run.subject);
            }
        }
        subjects
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) subject: &'static str,
    pub(crate) figures: Figures,
}

/// A figure and its goal; medians of the repetitions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) what: &'static str,
    pub(crate) figure: f64,
    /// The reference of a ratio.
    pub(crate) against: Option<f64>,
    pub(crate) value: f64,
    pub(crate) wanted: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn word(&self) -> &'static str {
        match self.wanted {
            _ if self.value.is_nan() => "not measured",
            Wanted::AtLeast(least) if self.value >= least => "reached",
            Wanted::AtMost(most) if self.value <= most => "reached",
            Wanted::AtLeast(_) | Wanted::AtMost(_) => "**missed**",
        }
    }
}

pub(crate) fn run_line(name: &str, subject: Subject, figures: &Figures) -> String {
    let cost = figures.cpu_ms;
    let mut line = format!(
        "{name:<14} {:<10} {:>7.0}/s  cpu {:.0}+{:.0}+{:.0} ms/1,000  commits {:.4}  statements {:.4}  rows {:.2}",
        subject.name(),
        figures.per_s,
        cost.own,
        cost.postgres,
        cost.nats,
        figures.commits,
        figures.statements,
        figures.rows,
    );
    if let Some(latency) = figures.latency {
        let _ = write!(line, "  p50 {:.2} p99 {:.2} ms", latency.p50_ms, latency.p99_ms);
    }
    for killed in &figures.killed {
        let _ = write!(line, "  {} {:.0} ms", killed.process, killed.resumed_ms);
    }
    if figures.is_unfinished() {
        let _ = write!(line, "  {} of {} in its time", figures.recorded, figures.notifications);
    }
    if figures.is_disturbed() {
        let _ = write!(line, "  disturbed: others used {:.2} cores", figures.foreign_cores);
    }
    line
}

/// The machine; goal, figure and ratio of every row; the medians; the meaning of the rows.
pub(crate) fn text(report: &Report) -> String {
    let mut text = heading(report);
    text.push_str("\n| row | figure | measured | against | ratio | goal | |\n|---|---|---:|---:|---:|---|---|\n");
    for row in &report.rows {
        for goal in &row.goals {
            text.push_str(&goal_line(row.name, goal));
        }
    }
    text.push_str(
        "\n| row | who | done | /s | whole /s | p50 ms | p99 ms | CPU ms per 1,000: own + Postgres + NATS (provider) | commits \
         | statements | rows | MiB | others |\n|---|---|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|\n",
    );
    for row in &report.rows {
        for subject in row.subjects() {
            text.push_str(&medians_line(row, subject));
        }
    }
    text.push('\n');
    for row in &report.rows {
        let _ = writeln!(text, "- {}: {}", row.name, row.about);
        if let Some(failed) = &row.failed {
            let _ = writeln!(text, "  **failed**: {failed}");
        }
    }
    text
}

fn heading(report: &Report) -> String {
    let machine = &report.machine;
    format!(
        "{} ({}), {}. {} cores of {}, {} GiB, Linux {}, {} with {:.2} ms for a write and its sync. Postgres {}, nats-server {}. \
         Medians of {}; {} minutes.\n",
        machine.commit,
        machine.build,
        report.at.format(&Rfc3339).unwrap_or_default(),
        machine.cores,
        machine.processor,
        machine.memory_gib,
        machine.kernel,
        machine.filesystem,
        machine.sync_ms,
        machine.postgres,
        machine.nats,
        report.repetitions,
        report.took_s.div_ceil(60),
    )
}

fn goal_line(row: &str, goal: &Goal) -> String {
    let wanted = match goal.wanted {
        Wanted::AtLeast(least) => format!("≥ {least}"),
        Wanted::AtMost(most) => format!("≤ {most}"),
    };
    let (against, ratio) = match goal.against {
        Some(against) => (number(against), number(goal.value)),
        None => Default::default(),
    };
    format!(
        "| {row} | {} | {} | {against} | {ratio} | {wanted} | {} |\n",
        goal.what,
        number(goal.figure),
        goal.word()
    )
}

fn medians_line(row: &Row, subject: &str) -> String {
    let of: Vec<&Figures> = row
        .runs
        .iter()
        .filter(|run| run.subject == subject)
        .map(|run| &run.figures)
        .collect();
    let Some(first) = of.first() else {
        return String::new();
    };
    let median = |figure: &dyn Fn(&Figures) -> f64| median(of.iter().map(|figures| figure(figures)));
    let disturbed = of.iter().filter(|figures| figures.is_disturbed()).count();
    let done = match of.iter().find(|figures| figures.is_unfinished()) {
        Some(figures) => format!("{} of {}", figures.recorded, figures.notifications),
        None => first.notifications.to_string(),
    };
    let [own, postgres, nats, provider] = [
        |figures: &Figures| figures.cpu_ms.own,
        |figures: &Figures| figures.cpu_ms.postgres,
        |figures: &Figures| figures.cpu_ms.nats,
        |figures: &Figures| figures.cpu_ms.provider,
    ]
    .map(|cost| number(median(&cost)));
    format!(
        "| {} | {} | {done} | {} | {} | {} | {} | {own} + {postgres} + {nats} ({provider}) | {} | {} | {} | {} | {} |\n",
        row.name,
        subject,
        number(median(&|figures| figures.per_s)),
        number(median(&|figures| figures.per_s_whole.unwrap_or(f64::NAN))),
        number(median(&|figures| figures
            .latency
            .map_or(f64::NAN, |latency| latency.p50_ms))),
        number(median(&|figures| figures
            .latency
            .map_or(f64::NAN, |latency| latency.p99_ms))),
        number(median(&|figures| figures.commits)),
        number(median(&|figures| figures.statements)),
        number(median(&|figures| figures.rows)),
        number(median(&Figures::memory_most_mib)),
        if disturbed == 0 {
            String::new()
        } else {
            format!("in {disturbed} of {}", of.len())
        },
    )
}

fn number(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => String::new(),
        large if large >= 1_000.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
