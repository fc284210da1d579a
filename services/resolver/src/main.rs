//! The resolver as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::run(storage::Role::Resolver, |context| async {
        resolver::start(context).await.map(|_| ())
    })
}
