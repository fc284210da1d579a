//! The wiring: one consumer of calls, one of approvals, and one HTTP server for agents, both on the same executor.

use std::{net::SocketAddr, sync::Arc};

use contracts::{
    message::Message as _,
    tool::{ToolApproved, ToolRequested},
};
use domain::session::HOPS_MAX_DEFAULT;
use messaging::{Consumer, ConsumerOptions, Durable, User};
use runtime::{Context, Shares};

use crate::{
    execute::Executor,
    handlers::{ToolApprovedHandler, ToolRequestedHandler},
    http,
    metrics::Metrics,
    settings::ToolGatewaySettings,
    tools::Toolbox,
};

/// Starts the service's workers and returns the address that `/agent/*` is served at (a port 0 picks a free one).
pub async fn start(context: Context) -> anyhow::Result<SocketAddr> {
    let config: ToolGatewaySettings = context.settings.section("tool_gateway")?;
    let hops_max = context.settings.value("resolver.hops_max")?.unwrap_or(HOPS_MAX_DEFAULT);
    let shares = Shares::default();
    shares.limit(context.topology.limits.notification_bytes_max);
    let watch = shares.clone().watch(context.database.clone(), context.shutdown.token());
    context.shutdown.spawn("shares of the outbox", watch);
    let executor = Executor {
        shares,
        database: context.database.clone(),
        root: context.root().clone(),
        outbox: context.outbox.clone(),
        toolbox: Arc::new(Toolbox::new()),
        statement_timeout_ms: config.statement_timeout_ms.get(),
        branches: config.branch_limits(hops_max),
        metrics: Arc::new(Metrics::new()),
        shutdown: context.shutdown.clone(),
    };
    let consumer = Consumer {
        bus: context.bus.clone(),
        topology: context.topology.clone(),
        durable: Durable::of(User::ToolGateway, ToolRequested::KIND),
        options: ConsumerOptions {
            batch_messages_max: config.batch_messages_max.non_zero(),
            loops: config.loops.non_zero(),
            groups_in_flight_max: config.sessions_in_flight_max.non_zero(),
            attempts_max: i64::from(config.attempts_max.get()),
            retry_delay: config.retry_delay_ms.duration(),
            ..ConsumerOptions::default()
        },
        handler: ToolRequestedHandler {
            executor: executor.clone(),
            config: config.clone(),
        },
        dead_letters: Box::new(context.dead_letters()),
    };
    let stop = context.shutdown.token();
    context.shutdown.spawn("tool_requested", consumer.run(stop));
    let consumer = Consumer {
        bus: context.bus.clone(),
        topology: context.topology.clone(),
        durable: Durable::of(User::ToolGateway, ToolApproved::KIND),
        options: ConsumerOptions {
            attempts_max: i64::from(config.attempts_max.get()),
            retry_delay: config.retry_delay_ms.duration(),
            ..ConsumerOptions::default()
        },
        handler: ToolApprovedHandler {
            executor: executor.clone(),
            config: config.clone(),
        },
        dead_letters: Box::new(context.dead_letters()),
    };
    let stop = context.shutdown.token();
    context.shutdown.spawn("tool_approved", consumer.run(stop));

    let routes = http::routes(executor, context.connect_callers().await?);
    Ok(context.serve(config.listen, routes, context.health()).await?)
}
