//! Delivery as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::run(storage::Role::Delivery, |context| async {
        delivery::start(context).await.map(|_| ())
    })
}
