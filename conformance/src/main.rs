//! `queue-conformance`: the command line, and the loop over the cases.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "its output is its result")]

use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, ensure};
use clap::Parser;
use queue_conformance::{
    case::{Case, Chapter, chapters_read, offers},
    doc,
    driver::Driver,
    model::Model,
    report::{CaseResult, Report, Verdict},
    run::{Failure, case_run},
};
use tokio::time::Instant;

/// Checks how a service that runs agents treats its queue: modes, edits, brakes, crashes.
#[derive(Parser, Debug)]
#[command(
    version,
    about,
    after_help = "Exit codes: 0 no case failed, 1 a case failed or the driver cannot be used, 2 wrong usage."
)]
struct Arguments {
    /// Command that starts the driver; words are separated by spaces
    #[arg(long, value_name = "CMD", required_unless_present = "doc")]
    driver: Option<String>,
    /// Folder of cases (*.toml), instead of the built-in ones
    #[arg(long, value_name = "DIR")]
    cases: Option<PathBuf>,
    /// Run this case only; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// How long a step may take to come true
    #[arg(long, value_name = "MS", default_value_t = 15_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    timeout_ms: u64,
    /// Write the document of the cases to this file, and run nothing
    #[arg(long, value_name = "FILE")]
    doc: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("queue-conformance: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether no case failed.
async fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let chapters = chapters_read(arguments.cases.as_deref())?;
    if let Some(path) = &arguments.doc {
        let written = fs::write(path, doc::document(&chapters));
        written.with_context(|| format!("could not write {}", path.display()))?;
        return Ok(true);
    }
    let cases = chosen(&chapters, &arguments.only)?;
    let wait = Duration::from_millis(arguments.timeout_ms);
    let command = arguments.driver.as_deref().context("no driver")?;
    let mut model = Model::start().await?;
    let mut driver = Driver::start(command, &model.url).await?;
    let name = driver.hello.name.clone();
    let offers = offers(&driver.hello);
    // Ids of another run may still be known to the service.
    let run = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let mut results = Vec::new();
    let mut lost = None;
    for (n, case) in cases.into_iter().enumerate() {
        let began = Instant::now();
        let (verdict, detail) = match (&lost, case.needs().difference(&offers).next()) {
            (_, Some(lacks)) => (Verdict::NotSupported, format!("the driver does not offer {lacks}")),
            (Some(reason), None) => (Verdict::Fail, format!("not run: {reason}")),
            (None, None) => match case_run(case, &format!("qc{run:x}x{n}"), wait, &mut driver, &mut model).await {
                Ok(()) => (Verdict::Pass, String::new()),
                Err(Failure { error, is_final }) => {
                    lost = is_final.then(|| format!("{error:#}"));
                    failed(&driver, case, &error)
                }
            },
        };
        let (name, elapsed_ms) = (case.name.clone(), began.elapsed().as_millis());
        if !arguments.json {
            eprintln!("{verdict:13} {name}");
        }
        results.push(CaseResult {
            name,
            verdict,
            detail,
            elapsed_ms,
        });
    }
    // A driver that is out of step is killed with the program.
    let ended = match lost {
        None => driver.end().await,
        Some(_) => Ok(()),
    };
    let report = Report::new(&name, results);
    if arguments.json {
        let text = serde_json::to_string_pretty(&report).context("could not write the report")?;
        println!("{text}");
    } else {
        print!("{}", report.table());
    }
    ended?;
    Ok(!report.has_failed())
}

fn failed(driver: &Driver, case: &Case, error: &anyhow::Error) -> (Verdict, String) {
    match driver.hello.differs.get(&case.name) {
        Some(why) => (Verdict::Differs, why.clone()),
        None => (Verdict::Fail, format!("{error:#}")),
    }
}

fn chosen<'a>(chapters: &'a [Chapter], only: &[String]) -> anyhow::Result<Vec<&'a Case>> {
    let all = chapters.iter().flat_map(|chapter| &chapter.cases);
    if only.is_empty() {
        return Ok(all.collect());
    }
    for name in only {
        ensure!(all.clone().any(|case| case.name == *name), "there is no case {name}");
    }
    Ok(all.filter(|case| only.contains(&case.name)).collect())
}
