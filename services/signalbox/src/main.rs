//! `signalbox`: the all-in-one process and the operator's command. What it can do is [`cli`]; who does it is
//! [`commands`]. Here is only how a process begins and ends: one line for an error, and what the exit code says.
//!
//! In reading order: [`cli`], [`commands`] (one file each), [`up`] (the whole system in one process), [`doctor`] (what is
//! wrong with an installation), [`schemas`] (what others build against), [`client`] (the public HTTP API, and nothing
//! else: the command sees what every other program could see), [`endpoints`] (how it finds a running `up`), [`text`],
//! [`table`] and [`print`] (what people read).

mod cli;
mod client;
mod commands;
mod doctor;
mod endpoints;
mod print;
mod schemas;
mod table;
mod text;
mod up;

use std::process::ExitCode;

use clap::Parser;
use runtime::{SettingsError, StartError};

use crate::{
    cli::{Cli, Command},
    print::ReaderGone,
};

/// The settings or the command line were refused: trying again without changing them is of no use. clap's own code.
const EXIT_REFUSED: u8 = 2;

/// Of the program alone: tests count what they allocate with one of their own.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::Serve(args) = &cli.command {
        return commands::serve::run(args.service);
    }
    runtime::telemetry::install_tls_provider();
    let executor = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(executor) => executor,
        Err(error) => return failed(&error.into()),
    };
    match executor.block_on(commands::run(cli)) {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    if error.is::<ReaderGone>() {
        return ExitCode::SUCCESS;
    }
    print::complain(&text::error_line(error));
    ExitCode::from(if is_refused_setting(error) { EXIT_REFUSED } else { 1 })
}

fn is_refused_setting(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let start = cause.downcast_ref::<StartError>();
        cause.is::<SettingsError>() || start.is_some_and(StartError::is_refused_setting)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use messaging::BusError;

    use super::*;

    #[test]
    fn a_setting_that_a_dependency_refuses_is_a_refused_setting() {
        let check = |error: BusError, expected: bool| {
            let error = Err::<(), _>(StartError::Bus(error)).context("delivery could not start");
            assert_eq!(is_refused_setting(&error.unwrap_err()), expected);
        };
        let reason = "no host".to_owned();
        check(BusError::Url { reason }, true);
        let servers = "127.0.0.1:4222".to_owned();
        check(BusError::NoJetStream { servers }, false);
    }
}
