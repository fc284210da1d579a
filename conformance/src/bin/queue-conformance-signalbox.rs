//! The driver of Signalbox, which it starts itself in a directory of its own.

#![allow(clippy::print_stderr, reason = "standard output has the answers")]

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use queue_conformance::{protocol::serve, signalbox::Signalbox};

/// Driver of queue-conformance: Signalbox
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    /// The program `signalbox`
    #[arg(long, value_name = "PATH")]
    signalbox: PathBuf,
    /// Two, so that one of them can be killed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    replicas: u8,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut driver = Signalbox::new(arguments.signalbox, arguments.replicas.into());
    let served = serve(async |request| driver.answer(request).await).await;
    let ended = driver.end().await;
    match served.and(ended) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("queue-conformance-signalbox: {error:#}");
            ExitCode::FAILURE
        }
    }
}
