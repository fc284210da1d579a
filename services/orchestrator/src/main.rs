//! The orchestrator as a process of its own. What it does is `orchestrator::start`.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::run(storage::Role::Orchestrator, |context| async {
        orchestrator::start(context).await.map(|_| ())
    })
}
