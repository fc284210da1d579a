//! `signalbox serve SERVICE`: one service as a process of its own. One program for all of them: an image holds their
//! libraries once.

use std::process::ExitCode;

use storage::Role;

use crate::cli::Service;

/// Until SIGINT, SIGTERM or a failure. Makes the executor itself, so it is not called from one.
pub(crate) fn run(service: Service) -> ExitCode {
    match service {
        Service::Resolver => runtime::run(Role::Resolver, |context| async {
            resolver::start(context).await.map(drop)
        }),
        Service::Delivery => runtime::run(Role::Delivery, |context| async {
            delivery::start(context).await.map(drop)
        }),
        Service::ToolGateway => runtime::run(Role::ToolGateway, |context| async {
            tool_gateway::start(context).await.map(drop)
        }),
        Service::Orchestrator => runtime::run(Role::Orchestrator, |context| async {
            orchestrator::start(context).await.map(drop)
        }),
    }
}
