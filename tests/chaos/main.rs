//! The fault campaign: real processes and servers under faults, scheduled from one seed. It injects the faults, waits until the
//! system is idle, and a checker judges from the records whether anything was lost, done twice or shown to another account. Wrong
//! decisions of the services are found by their own tests and by the simulation; this finds failures of whole processes.
//!
//! In reading order: [`plan`] (the schedule, from the seed alone), [`system`] (the system under test), [`provider`], [`clients`],
//! [`faults`], [`campaign`] (runs all of it), [`machine`], [`quiesce`], [`audits`], [`records`], [`checker`], [`report`]. [`recovery`] and
//! [`fair`] measure without a verdict; [`age`] judges by time.

mod age;
mod arguments;
mod audits;
mod book;
mod campaign;
mod checker;
mod clients;
mod dice;
mod fair;
mod faults;
mod listener;
mod machine;
mod plan;
mod planted;
mod provider;
mod quiesce;
mod records;
mod recovery;
mod report;
#[path = "../simulation/mod.rs"]
mod simulation;
mod system;

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, bail};
use clap::Parser;
use tempfile::TempDir;

use arguments::{Arguments, CampaignArguments, CheckArguments, Command, SimulateArguments};
use campaign::Campaign;
use plan::Plan;
use records::Records;
use report::{Report, Verdict};

/// Exit code of a campaign that could not run.
const EXIT_FAILED: u8 = 2;

fn main() -> ExitCode {
    testkit::install_tls_provider();
    let arguments = Arguments::parse();
    if arguments.command.is_none() {
        system::enter();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = run(arguments) => ended,
            // Dropping the campaign ends all of its processes.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    });
    // Remaining tasks hold processes of ours.
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    ended.unwrap_or_else(|error| failed(&error))
}

#[expect(clippy::print_stderr, reason = "a program for people")]
fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("chaos: {error:#}");
    ExitCode::from(EXIT_FAILED)
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        None => campaign(&arguments.campaign).await,
        Some(Command::Check(arguments)) => check(arguments).await,
        Some(Command::Planted(arguments)) => planted::run(&arguments).await,
        Some(Command::Recovery(arguments)) => Box::pin(recovery::run(&arguments)).await,
        Some(Command::Age(arguments)) => Box::pin(age::run(&arguments)).await,
        Some(Command::Fair(arguments)) => Box::pin(fair::run(&arguments)).await,
        Some(Command::Simulate(arguments)) => Ok(simulate(&arguments)),
    }
}

/// The violations that the checker finds in what was kept.
#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
async fn check(arguments: CheckArguments) -> anyhow::Result<ExitCode> {
    let path = arguments.kept.join("records.json");
    let kept = fs::read(&path).with_context(|| format!("could not read {}", path.display()))?;
    let mut records: Records = serde_json::from_slice(&kept).context("the records")?;
    if let Some(url) = arguments.database_url {
        records.database_url = url;
    }
    let violations = checker::check(&records).await.context("the checker")?;
    for violation in &violations {
        println!("{} {}: {}", violation.invariant, violation.expected, violation.found);
    }
    println!("{} violations", violations.len());
    Ok(ExitCode::from(u8::from(!violations.is_empty())))
}

/// Blocks the thread: nothing else runs.
#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
fn simulate(arguments: &SimulateArguments) -> ExitCode {
    let begun = std::time::Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match simulation::run_many(arguments.from, arguments.seeds, arguments.threads.unwrap_or(cores)) {
        Ok(many) => {
            println!("{many}");
            let seconds = begun.elapsed().as_secs_f64();
            println!("{seconds:.0} s, {:.0} seeds a second", many.seeds as f64 / seconds);
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]
async fn campaign(arguments: &CampaignArguments) -> anyhow::Result<ExitCode> {
    let plan = Plan::new(arguments.seed, arguments.faults, &arguments.kinds).map_err(anyhow::Error::msg)?;
    if arguments.plan {
        print!("{plan}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut verdict = run_plan(&plan, arguments).await?;
    for left in (0..arguments.again).rev() {
        if verdict != Verdict::Invalid {
            break;
        }
        eprintln!("chaos: no verdict; the same once more ({left} more times after that)");
        verdict = run_plan(&plan, arguments).await?;
    }
    Ok(verdict.into())
}

#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
async fn run_plan(plan: &Plan, arguments: &CampaignArguments) -> anyhow::Result<Verdict> {
    let temporary = TempDir::with_prefix("signalbox-chaos-").context("could not make a temporary directory")?;
    let directory = match &arguments.keep {
        Some(directory) => empty(directory)?,
        None => temporary.path(),
    };
    reachable(directory)?;
    fs::write(directory.join("plan.txt"), plan.to_string()).context("could not write the schedule")?;
    let (campaign, outcome) = Box::pin(Campaign::run(plan, directory, &arguments.until())).await?;
    let violations = match &outcome.found_meanwhile {
        Some(found) => found.clone(),
        // The system did not become idle in time, so the invariants of an idle system are not checked.
        None if outcome.had_no_time() => checker::check_meanwhile(|| outcome.records.clone())
            .await
            .context("the checker")?,
        None => checker::check(&outcome.records).await.context("the checker")?,
    };
    let report = Report::of(plan, &campaign, &outcome, &violations).await?;
    if arguments.keep.is_some() {
        keep(directory, &outcome.records)?;
    }
    campaign.system.stop().await?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report).context("a report is JSON")?);
    } else {
        print!("{report}");
    }
    Ok(report.verdict())
}

fn empty(directory: &Path) -> anyhow::Result<&Path> {
    fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
    let mut entries = fs::read_dir(directory).with_context(|| format!("could not read {}", directory.display()))?;
    if entries.next().is_some() {
        bail!("{} is not empty", directory.display());
    }
    Ok(directory)
}

/// Postgres does not run as root and must be able to pass through the folder.
fn reachable(directory: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o711))
        .context("could not open the directory to Postgres")
}

fn keep(directory: &Path, records: &Records) -> anyhow::Result<()> {
    let json = serde_json::to_vec(records).context("records are JSON")?;
    fs::write(directory.join("records.json"), json).context("could not keep the records")
}
