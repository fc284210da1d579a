//! `signalbox serve SERVICE`: one service in its own process. One program for all services, so an image holds their libraries once.

use std::process::ExitCode;

use storage::Role;

use crate::cli::Service;

/// Runs until SIGINT, SIGTERM or a failure. It creates the executor itself, so it must not be called from one.
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
