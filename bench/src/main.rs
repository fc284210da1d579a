//! Measures Signalbox against the floor of its stack: the smallest program that does the same work without losing, doubling or
//! reordering anything. Both run on the same machine, in the same run, in turn.
//!
//! The work, W: notifications are published on NATS; each becomes one provider call, in order for each (task, agent), and is
//! recorded once in Postgres. In reading order:
//! - the work and its surroundings: [`work`], [`load`] (publishes it), [`stage`] (the servers), [`provider`] with its
//!   [`book`] (answers calls, checks order and number), [`stored`] (old data), [`people`] (what people ask for);
//! - the subjects: [`subject`], [`started`] (their processes), [`floor`], [`peers`];
//! - one measurement: [`run`], [`progress`], [`kill`], and the figures: [`figures`], [`listen`] (latency), [`usage`] (CPU
//!   and memory, from `/proc`), [`counters`] (Postgres);
//! - all measurements: [`rows`] (rows and goals), [`shown`] (medians and ratios), [`table`], [`machine`], [`report`],
//!   [`print`].
//!
//! Floor and provider are separate processes, so that the kernel counts their cost apart. They are this program with another first
//! argument.

mod arguments;
mod book;
mod client;
mod counters;
mod figures;
mod floor;
mod kill;
mod listen;
mod load;
mod machine;
mod peers;
mod people;
mod print;
mod progress;
mod provider;
mod report;
mod rows;
mod run;
mod shown;
mod stage;
mod started;
mod stored;
mod subject;
mod table;
mod usage;
mod work;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use arguments::{Arguments, Command};

fn main() -> ExitCode {
    match begin() {
        Ok(code) => code,
        Err(error) => {
            print::say(&format!("bench: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn begin() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let mut builder = match &arguments.command {
        // The provider runs on one thread, to take as little of the machine as possible.
        Some(Command::Provider(_)) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder
        .enable_all()
        .build()
        .context("could not start the async runtime")?;
    let ended = runtime.block_on(async {
        let work = async {
            match arguments.command {
                Some(Command::Provider(arguments)) => provider::serve(arguments).await,
                Some(Command::Floor(arguments)) => floor::run(arguments).await,
                None => table::measure(arguments.table).await,
            }
        };
        tokio::select! {
            ended = work => ended,
            // Dropping the future ends the started processes.
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        }
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    ended
}
