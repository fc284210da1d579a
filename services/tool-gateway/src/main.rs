//! The tool-gateway as a process of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::run(storage::Role::ToolGateway, |context| async move {
        tool_gateway::start(context).await.map(drop)
    })
}
