//! One file a command; here is the table. A command returns its exit code, or an error that `main` prints as one line.

mod dead;
mod demo_agent;
mod health;
pub(crate) mod migrate;
mod nats_users;
mod notifications;
mod notify;
mod provider;
pub(crate) mod serve;
mod sessions;
pub(crate) mod turns;

use std::process::ExitCode;

use time::{OffsetDateTime, UtcOffset, format_description::BorrowedFormatItem, macros::format_description};

use crate::{
    cli::{Cli, Command, DeadCommand, ProviderCommand},
    doctor, schemas, up,
};

pub(crate) async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let json = cli.json;
    match cli.command {
        Command::Up(args) => Box::pin(up::run(&args, json)).await,
        // It makes an executor of its own, so `main` has seen to it.
        Command::Serve(_) => unreachable!("a service is not started from within an executor"),
        Command::Migrate => Box::pin(migrate::run(json)).await,
        Command::Doctor(args) => Box::pin(doctor::run(&args, json)).await,
        Command::Health(args) => health::run(&args, json).await,
        Command::Sample(args) => Box::pin(up::sample_run::run(&args, json)).await,
        Command::DemoAgent(args) => demo_agent::run(&args).await,
        Command::Notify(args) => notify::run(&args, json).await,
        Command::Sessions(args) => sessions::run(&args, json).await,
        Command::Turns(args) => turns::run(&args, json).await,
        Command::Notifications(args) => notifications::run(&args, json).await,
        Command::Dead(args) => match args.command {
            DeadCommand::List(args) => dead::list(&args, json).await,
            DeadCommand::Show(args) => dead::show(&args, json).await,
            DeadCommand::Redrive(args) => dead::redrive(&args, json).await,
        },
        Command::Provider(args) => match args.command {
            ProviderCommand::Check(args) => Box::pin(provider::check(&args, json)).await,
        },
        Command::NatsUsers => nats_users::run(json),
        Command::Schemas(args) => schemas::run(&args, json),
    }
}

/// A moment of the API as a table shows it: to the second, without its zone, which is always UTC.
fn moment(at: Option<OffsetDateTime>) -> String {
    const FORM: &[BorrowedFormatItem<'_>] = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    at.and_then(|at| at.to_offset(UtcOffset::UTC).format(FORM).ok())
        .unwrap_or_default()
}
