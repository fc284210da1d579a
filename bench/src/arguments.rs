//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::work::Answer;

/// Measures Signalbox against the floor of its stack: starts its own NATS, Postgres and provider, runs both in turn, and
/// prints goal, figure and ratio for each row.
#[derive(Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) table: TableArguments,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run the provider (used by the benchmark itself)
    #[command(hide = true)]
    Provider(ProviderArguments),
    /// Run the floor (used by the benchmark itself)
    #[command(hide = true)]
    Floor(FloorArguments),
}

#[derive(Args)]
pub(crate) struct TableArguments {
    /// Only rows whose name contains one of these words
    #[arg(value_name = "ROW")]
    pub(crate) rows: Vec<String>,
    /// Repetitions of each row; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=21))]
    pub(crate) repetitions: u32,
    /// Notifications of a run, unless the row sets its own number
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub(crate) notifications: u32,
    /// Also write the results as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also write the results as a Markdown table
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// List the rows and measure nothing
    #[arg(long)]
    pub(crate) list: bool,
    /// Keep data and logs in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) keep: Option<PathBuf>,
    /// Have Postgres log the plan of every statement, with times of its nodes and triggers; such a run is much slower
    #[arg(long, requires = "keep")]
    pub(crate) explain: bool,
    /// Run this program as the floor; it takes the same arguments
    #[arg(long, value_name = "PROGRAM", hide = true)]
    pub(crate) floor: Option<PathBuf>,
}

#[derive(Clone, Copy, Args)]
pub(crate) struct ProviderArguments {
    #[arg(long)]
    pub(crate) answer: Answer,
    #[arg(long)]
    pub(crate) delay_ms: u64,
    #[arg(long)]
    pub(crate) reply_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FloorPart {
    /// From the stream to the recorded outcome, in one process.
    Whole,
    /// The first of two processes: stores notifications and forwards them over a second stream.
    Intake,
    /// The second of two processes.
    Turns,
}

#[derive(Clone, Copy, Args)]
pub(crate) struct FloorArguments {
    #[arg(long)]
    pub(crate) part: FloorPart,
    #[arg(long)]
    pub(crate) in_flight: usize,
}
