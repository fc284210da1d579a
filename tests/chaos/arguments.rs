//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Real processes and real servers under faults, from one seed: was anything lost, done twice, or shown to other accounts?
///
/// Exit code 0: no; 1: yes; 3: no verdict, because too few faults or offers happened or the machine was too slow.
#[derive(Debug, Parser)]
#[command(name = "chaos")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) campaign: CampaignArguments,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Judge a campaign that was kept with `--keep` again. Its Postgres has to run.
    Check(CheckArguments),
    /// Hunt planted bugs: is each found, and is nothing found without it?
    Planted(PlantedArguments),
    /// Measure the recovery time after a fault, with the settings of an installation.
    Recovery(RecoveryArguments),
    /// Measure how much one account's long queue slows another account, and the memory it takes.
    Fair(FairArguments),
    /// Plant an old installation and simulate a day: is anything slow, stuck, or visible to another account?
    Age(AgeArguments),
    /// Run the simulation of the core instead, without processes (docs/reliability.md).
    Simulate(SimulateArguments),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CampaignArguments {
    /// Number of scheduled faults.
    #[arg(long, default_value_t = 60)]
    pub(crate) faults: usize,
    /// The same seed gives the same schedule.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Only these kinds of faults, by their names in the report; behind a colon, words that stand in the schedule's line
    /// of the fault: `kill:delivery`, `network_slow:delivery+Postgres`.
    #[arg(long, value_delimiter = ',')]
    pub(crate) kinds: Vec<String>,
    /// Check while it runs, and end with the first violation.
    #[arg(long)]
    pub(crate) until_broken: bool,
    /// The same, once the violations contain each of these words.
    #[arg(long, hide = true)]
    pub(crate) until_found: Vec<String>,
    /// Repeat a run without a verdict, so often at most.
    #[arg(long, default_value_t = 0, conflicts_with = "keep")]
    pub(crate) again: usize,
    /// Keep logs and records in this folder. It must be new or empty.
    #[arg(long)]
    pub(crate) keep: Option<PathBuf>,
    /// Write the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the schedule and end.
    #[arg(long)]
    pub(crate) plan: bool,
}

/// Condition for ending a campaign early.
#[derive(Clone, Debug)]
pub(crate) enum Until {
    TheEnd,
    /// Once the violations contain each of these words; with any violation if there are none.
    Found(Vec<String>),
}

impl CampaignArguments {
    pub(crate) fn until(&self) -> Until {
        if self.until_broken || !self.until_found.is_empty() {
            Until::Found(self.until_found.clone())
        } else {
            Until::TheEnd
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CheckArguments {
    /// The folder.
    pub(crate) kept: PathBuf,
    /// The superuser's URL of a server that runs on the folder's `postgres/cluster`; default: as when the campaign ran.
    #[arg(long)]
    pub(crate) database_url: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PlantedArguments {
    /// Names of bugs, `quick` (those that show within seconds) or `all`.
    #[arg(required = true)]
    pub(crate) bugs: Vec<String>,
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Run the same campaign without the bug, too.
    #[arg(long)]
    pub(crate) without: bool,
    /// All of them in one campaign, which must find each by its own rule. Only bugs that show before the system is idle.
    #[arg(long)]
    pub(crate) together: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RecoveryArguments {
    /// Trials of each kind; the wiped store has a tenth.
    #[arg(long, default_value_t = 20)]
    pub(crate) trials: usize,
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Only these, by their names in the report.
    #[arg(long, value_delimiter = ',')]
    pub(crate) kinds: Vec<String>,
    /// Notifications in flight when the broker's store is wiped.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) in_flight: usize,
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct FairArguments {
    /// Notifications of the busy account.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) waiting: usize,
    /// Sessions of the busy account.
    #[arg(long, default_value_t = 2_000)]
    pub(crate) sessions: usize,
    /// Notifications of the other account, alone and beside the first.
    #[arg(long, default_value_t = 100)]
    pub(crate) turns: usize,
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AgeArguments {
    /// Closed sessions of the large account, half of them emptied.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) sessions: u64,
    #[arg(long, default_value_t = 10_000_000)]
    pub(crate) notifications: u64,
    /// Finished tasks.
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) tasks: u64,
    /// Notifications that are posted to one task, which is then closed.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) posted: u64,
    /// Parts of the day.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=24))]
    pub(crate) hours: u64,
    /// Limit of a statement's time.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) limit_ms: u64,
}

impl AgeArguments {
    /// Waiting items of one session, which is then closed.
    pub(crate) fn long_queue(&self) -> u64 {
        (self.notifications / 100).min(100_000)
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SimulateArguments {
    /// Number of seeds.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
    /// Threads; default: one for each core.
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}
