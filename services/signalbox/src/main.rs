//! `signalbox`: the all-in-one process and the operator's command. This file has the table of commands, prints an error as one
//! line, and sets the exit code.
//!
//! In reading order: [`cli`] (the command line), [`commands`] (one file each), [`up`] (the whole system in one process), [`doctor`]
//! (checks an installation), [`schemas`] (interface descriptions), [`client`] (the public HTTP API, the only way to the data),
//! [`endpoints`] (how a command finds a running `up`), [`text`], [`table`] and [`print`] (output for people).

mod cli;
mod client;
mod commands;
mod doctor;
mod endpoints;
mod ports;
mod print;
mod schemas;
mod table;
mod text;
mod up;

use std::process::ExitCode;

use runtime::{SettingsError, StartError};

use crate::{
    cli::{AuditCommand, Cli, Command, DeadCommand, ProviderCommand},
    commands::{
        audit, branches, cancel, context, dead, demo_agent, diff, handover, health, holds, log, mail, members, migrate,
        nats_keys, nats_users, next, notifications, notify, pause, provider, providers, questions, queue, release,
        replay, replays, reset, resume, route, sessions, stop, turns,
    },
    print::ReaderGone,
};

/// Settings or command line were refused: a retry without a change fails again. clap uses the same code.
const EXIT_REFUSED: u8 = 2;

/// In the program only: tests count allocations with their own allocator.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = Cli::read();
    if let Command::Serve(args) = &cli.command {
        return commands::serve::run(args.service);
    }
    runtime::telemetry::install_tls_provider();
    let executor = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(executor) => executor,
        Err(error) => return failed(&error.into()),
    };
    match executor.block_on(run(cli)) {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

/// Runs a command.
async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let json = cli.json;
    match cli.command {
        Command::Up(args) => Box::pin(up::run(&args, json)).await,
        // `serve` creates its own executor, so `main` has handled it.
        Command::Serve(_) => unreachable!("a service is not started from within an executor"),
        Command::Migrate => Box::pin(migrate::run(json)).await,
        Command::Doctor(args) => Box::pin(doctor::run(&args, json)).await,
        Command::Health(args) => health::run(&args, json).await,
        Command::Sample(args) => Box::pin(up::sample_run::run(&args, json)).await,
        Command::DemoAgent(args) => demo_agent::run(&args).await,
        Command::Notify(args) => notify::run(&args, json).await,
        Command::Steer(item) => notify::steer(item, json).await,
        Command::Sessions(args) => sessions::run(&args, json).await,
        Command::Stop(args) => stop::run(&args, json).await,
        Command::Reset(args) => reset::run(&args, json).await,
        Command::Pause(args) => pause::run(&args, json).await,
        Command::Holds(args) => holds::run(&args, json).await,
        Command::Members(args) => members::run(args, json).await,
        Command::Resume(args) => resume::run(&args, json).await,
        Command::Cancel(args) => cancel::run(&args, json).await,
        Command::Handover(args) => handover::run(&args, json).await,
        Command::Queue(args) => queue::run(&args, json).await,
        Command::Next(args) => next::run(&args, json).await,
        Command::Context(args) => context::run(&args, json).await,
        Command::Branches(args) => branches::run(&args, json).await,
        Command::Questions(args) => questions::run(&args, json).await,
        Command::Providers(args) => providers::run(&args, json).await,
        Command::Release(args) => release::run(&args, json).await,
        Command::Turns(args) => turns::run(&args, json).await,
        Command::Log(args) => log::run(&args, json).await,
        Command::Diff(args) => diff::run(&args, json).await,
        Command::Replay(args) => replay::run(&args, json).await,
        Command::Replays(args) => replays::run(&args, json).await,
        Command::Audit(args) => match args.command {
            AuditCommand::Isolation(args) => audit::isolation(&args, json).await,
        },
        Command::Notifications(args) => notifications::run(&args, json).await,
        Command::Route(args) => route::run(&args, json).await,
        Command::Mail(args) => mail::run(&args, json).await,
        Command::Dead(args) => match args.command {
            DeadCommand::List(args) => dead::list(&args, json).await,
            DeadCommand::Show(args) => dead::show_one(&args, json).await,
            DeadCommand::Redrive(args) => dead::redrive(&args, json).await,
        },
        Command::Provider(args) => match args.command {
            ProviderCommand::Check(args) => Box::pin(provider::check(&args, json)).await,
        },
        Command::NatsUsers => nats_users::run(json),
        Command::NatsKeys => nats_keys::run(json),
        Command::Schemas(args) => schemas::run(&args, json),
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
