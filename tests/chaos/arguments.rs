//! What can be asked of the program.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Real processes and real servers under faults, from one seed: was anything lost, done twice, or shown to others?
///
/// Ends with 0 when nothing was, 1 when something was, 3 when too little happened for a verdict, or the machine had no
/// time for it.
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
    /// Look for bugs that are there on purpose: is each found, and is nothing found without it?
    Planted(PlantedArguments),
    /// Measure how long it takes until work goes on after a fault, with the settings of an installation.
    Recovery(RecoveryArguments),
    /// Measure how much one account with very much waiting slows another, and what memory that takes.
    Fair(FairArguments),
    /// Plant what months and millions leave behind, and let a day go by: does anything take long, stop, or reach another account?
    Age(AgeArguments),
    /// Run the simulation of the core instead, with no process at all (docs/reliability.md).
    Simulate(SimulateArguments),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CampaignArguments {
    /// How many faults are scheduled.
    #[arg(long, default_value_t = 60)]
    pub(crate) faults: usize,
    /// The same seed gives the same schedule.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Only these kinds of faults, by their names in the report; behind a colon, words that stand in the schedule's line
    /// of the fault: `kill:delivery`, `network_slow:delivery+Postgres`.
    #[arg(long, value_delimiter = ',')]
    pub(crate) kinds: Vec<String>,
    /// Look while it runs, and end with the first thing that is wrong.
    #[arg(long)]
    pub(crate) until_broken: bool,
    /// The same, with the first moment at which violations hold each of these words.
    #[arg(long, hide = true)]
    pub(crate) until_found: Vec<String>,
    /// Where no verdict could be given, run the same again, so often at most.
    #[arg(long, default_value_t = 0, conflicts_with = "keep")]
    pub(crate) again: usize,
    /// Write logs and records here and leave them. Must not exist yet, or be empty.
    #[arg(long)]
    pub(crate) keep: Option<PathBuf>,
    /// Write the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the schedule and end.
    #[arg(long)]
    pub(crate) plan: bool,
}

/// When a campaign ends before its time.
#[derive(Clone, Debug)]
pub(crate) enum Until {
    TheEnd,
    /// With the first moment at which violations hold each of these words; with any violation, where there are none.
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
pub(crate) struct PlantedArguments {
    /// Names of bugs, `quick` (those that show themselves within seconds) or `all`.
    #[arg(required = true)]
    pub(crate) bugs: Vec<String>,
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Run the same campaign without the bug, too.
    #[arg(long)]
    pub(crate) without: bool,
    /// All of them in one campaign, which has to find each by the rule that is its own. Only those that show themselves
    /// before it comes to rest.
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
    /// Notifications of the one account.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) waiting: usize,
    /// In so many sessions.
    #[arg(long, default_value_t = 2_000)]
    pub(crate) sessions: usize,
    /// Of the other account, alone and beside the first.
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
    /// Into how many parts the day is cut.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=24))]
    pub(crate) hours: u64,
    /// Nothing may take longer.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) limit_ms: u64,
}

impl AgeArguments {
    /// Of one session, which is closed with all of it waiting.
    pub(crate) fn long_queue(&self) -> u64 {
        (self.notifications / 100).min(100_000)
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SimulateArguments {
    /// How many seeds.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
    /// As many as there are cores, when none is given.
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}
