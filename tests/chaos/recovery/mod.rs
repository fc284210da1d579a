//! Measures the time until work continues after a fault, with the settings of an installation, since a campaign has shorter times.
//! Each trial begins idle, gives every session work at the time of the fault, and records the end of each session's next turn. No
//! other load runs.
//!
//! [`bench`] is the system, [`killed`], [`servers`] and [`wiped`] are the trials, [`measured`] the table.

pub(crate) mod bench;
mod killed;
pub(crate) mod measured;
mod servers;
mod wiped;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use storage::Role;
use tempfile::TempDir;

use crate::{arguments::RecoveryArguments, dice::Dice, provider::Pace};
use bench::Bench;
use measured::Measured;
use servers::Server;

const PACE: Pace = Pace {
    think_ms: (150, 300),
    think_long_ms: (150, 300),
};
const POLL: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(60);

const TRIALS: &[&str] = &[
    "undisturbed",
    "kill_resolver",
    "kill_delivery",
    "kill_tool-gateway",
    "kill_orchestrator",
    "nats_restart",
    "postgres_restart",
    "nats_half_open",
    "nats_wiped",
];

#[expect(clippy::print_stdout, reason = "the figures are what the program is for")]
pub(crate) async fn run(arguments: &RecoveryArguments) -> anyhow::Result<ExitCode> {
    if let Some(unknown) = arguments.kinds.iter().find(|kind| !TRIALS.contains(&kind.as_str())) {
        bail!("no trial is called {unknown}; there are {}", TRIALS.join(", "));
    }
    let wanted = |name: &str| arguments.kinds.is_empty() || arguments.kinds.iter().any(|kind| kind == name);
    let mut measured = Measured::default();
    measured.note_load("before");
    if TRIALS.iter().any(|name| *name != "nats_wiped" && wanted(name)) {
        Box::pin(short_trials(arguments, &wanted, &mut measured)).await?;
    }
    if wanted("nats_wiped") {
        for nth in 0..arguments.trials.div_ceil(10) {
            Box::pin(wiped::wiped(arguments, nth, &mut measured)).await?;
        }
    }
    measured.note_load("after");
    if arguments.json {
        let json = serde_json::to_string_pretty(&measured).context("figures are JSON")?;
        println!("{json}");
    } else {
        print!("{measured}");
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::print_stderr, reason = "how far it is, for whoever watches")]
async fn short_trials(
    arguments: &RecoveryArguments,
    wanted: &impl Fn(&str) -> bool,
    measured: &mut Measured,
) -> anyhow::Result<()> {
    let directory = TempDir::with_prefix("signalbox-recovery-")?;
    let mut bench = Bench::open(directory.path(), PACE, arguments.seed).await?;
    let mut dice = Dice::new(arguments.seed, "recovery");
    bench.wake_all("message").await?;
    bench.at_rest().await?;
    for round in 1..=arguments.trials {
        if wanted("undisturbed") {
            killed::undisturbed(&mut bench, &mut dice, measured).await?;
        }
        for role in [Role::Resolver, Role::Delivery, Role::ToolGateway, Role::Orchestrator] {
            if wanted(&format!("kill_{}", role.service())) {
                killed::killed(&mut bench, role, &mut dice, measured).await?;
            }
        }
        for server in Server::ALL {
            if wanted(server.trial()) {
                servers::restarted(&mut bench, server, measured).await?;
            }
        }
        if wanted("nats_half_open") {
            servers::half_open(&mut bench, measured).await?;
        }
        // An interrupted run also prints its results.
        eprintln!("after round {round} of {}\n{measured}", arguments.trials);
    }
    bench.system.stop().await
}
