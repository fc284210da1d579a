//! The driver of the reference: a service in memory, correct unless a bug is planted.

#![allow(clippy::print_stderr, reason = "standard output has the answers")]

use std::process::ExitCode;

use clap::Parser;
use queue_conformance::{
    protocol::serve,
    reference::{Form, Reference, bug::Bug},
};

/// Driver of queue-conformance: the reference, in memory
#[derive(Parser, Debug)]
#[command(version)]
struct Arguments {
    /// Plant a bug
    #[arg(long, value_enum, value_name = "NAME")]
    bug: Option<Bug>,
    /// The form of the calls
    #[arg(long, value_enum, default_value = "responses")]
    form: Form,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut reference = Reference::new(arguments.bug, arguments.form);
    match serve(async |request| Ok(reference.answer(request))).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("queue-conformance-reference: {error:#}");
            ExitCode::FAILURE
        }
    }
}
