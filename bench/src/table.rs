//! The whole table: rows in order, each with all subjects in turn, then goals and report.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, bail};
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::time::Instant;

use crate::{
    arguments::TableArguments,
    machine::Machine,
    print,
    report::{self, Report, Row, Run},
    rows::{PLANS, Plan},
    run,
    shown::Shown,
    stage::Servers,
};

pub(crate) async fn measure(arguments: TableArguments) -> anyhow::Result<ExitCode> {
    if arguments.list {
        for plan in PLANS {
            print::print(&format!("{:<16} {}", plan.name, plan.about));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen: Vec<&Plan> = PLANS.iter().filter(|plan| is_chosen(plan, &arguments.rows)).collect();
    if chosen.is_empty() {
        bail!("no row is called {}: --list names them", arguments.rows.join(" or "));
    }
    let begun = Instant::now();
    let temporary = TempDir::with_prefix("signalbox-bench-").context("could not create a temporary folder")?;
    let directory = arguments.keep.as_deref().unwrap_or(temporary.path());
    let mut servers = Servers::start(directory, arguments.explain).await?;
    let machine = Machine::facts(
        directory,
        servers.postgres_version().await?,
        servers.nats_version().await?,
    )?;
    let mut shown = Shown {
        notifications: arguments.notifications,
        rows: Vec::new(),
    };
    for plan in chosen {
        measure_row(&mut servers, plan, &mut shown, &arguments).await?;
    }
    servers.stop().await?;
    let report = Report {
        machine,
        at: OffsetDateTime::now_utc(),
        took_s: begun.elapsed().as_secs(),
        repetitions: arguments.repetitions,
        rows: shown.rows,
    };
    let text = report::text(&report);
    print::print(&text);
    write(arguments.json.as_deref(), &serde_json::to_string_pretty(&report)?)?;
    write(arguments.markdown.as_deref(), &text)?;
    if let Some(row) = report.rows.iter().find(|row| row.failed.is_some()) {
        print::say(&format!("row {} failed", row.name));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// A failed row is reported and does not stop the others.
async fn measure_row(
    servers: &mut Servers,
    plan: &Plan,
    shown: &mut Shown,
    arguments: &TableArguments,
) -> anyhow::Result<()> {
    let work = (plan.work)(shown);
    let mut row = Row {
        name: plan.name,
        about: plan.about,
        goals: Vec::new(),
        runs: Vec::new(),
        failed: None,
    };
    // Subjects alternate, so that a machine that slows down affects all of them.
    let repetitions = 0..arguments.repetitions.min(plan.repetitions_max);
    for subject in repetitions.flat_map(|_| plan.subjects) {
        match run::measure(servers, *subject, &work, arguments.floor.as_deref()).await {
            Ok(figures) => {
                print::print(&report::run_line(plan.name, *subject, &figures));
                row.runs.push(Run {
                    subject: subject.name(),
                    figures,
                });
            }
            Err(error) => {
                print::say(&format!("row {}: {error:#}", plan.name));
                row.failed = Some(format!("{error:#}"));
                break;
            }
        }
    }
    shown.rows.push(row);
    let goals = (plan.goals)(shown);
    if let Some(row) = shown.rows.last_mut() {
        row.goals = goals;
    }
    Ok(())
}

fn is_chosen(plan: &Plan, words: &[String]) -> bool {
    match words {
        [] => !plan.is_long,
        words => words.iter().any(|word| plan.name == word),
    }
}

fn write(file: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match file {
        Some(file) => fs::write(file, text).with_context(|| format!("could not write {}", file.display())),
        None => Ok(()),
    }
}
