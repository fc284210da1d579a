//! How fast Signalbox is, against the floor of its stack: the least program that does the same work without losing,
//! doubling or reordering anything, measured in the same run, on the same machine, in turn.
//!
//! The work, W: notifications are published on NATS; each becomes one call of a provider, in order for each (task,
//! agent), and is recorded once in Postgres. In reading order:
//! - what is to be done, and on what: [`work`], [`load`] (publishes it), [`stage`] (the servers), [`provider`] with its
//!   [`book`] (who answers, and sees whether order and number are kept), [`stored`] (what was done long ago);
//! - who is measured: [`subject`], [`started`] (their processes), [`floor`];
//! - one measurement: [`run`], [`progress`], [`kill`], and what it takes: [`figures`], [`listen`] (latency), [`usage`] (CPU
//!   and memory, from `/proc`), [`counters`] (what Postgres was asked);
//! - all of them: [`rows`] (which there are, and what they should show), [`shown`] (medians and ratios), [`table`],
//!   [`machine`], [`report`], [`print`].
//!
//! The floor and the provider are processes of their own, so that the kernel can say what each has cost; they are this
//! program with another first argument.

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
        // Answers from one thread, so that it takes no more of the machine than it must.
        Some(Command::Provider(_)) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build().context("no runtime")?;
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
            // What was started is dropped, and ends.
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        }
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    ended
}
