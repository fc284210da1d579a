//! The wiring: one consumer of calls, one of approvals, and one HTTP server for agents, all on the same executor; and the sweep of
//! external calls.

use std::{net::SocketAddr, sync::Arc};

use contracts::{
    message::Message as _,
    tool::{ToolApproved, ToolRequested},
};
use domain::session::{CHILDREN_OPEN_MAX_DEFAULT, HOPS_MAX_DEFAULT};
use messaging::{Consumer, ConsumerOptions, Durable, User};
use runtime::{Context, Shares, http::Routes, settings::Models};

use crate::{
    execute::Executor,
    external::{External, sweep::sweep},
    handlers::{ToolApprovedHandler, ToolRequestedHandler},
    http,
    metrics::Metrics,
    models::ModelCalls,
    settings::ToolGatewaySettings,
    tools::Toolbox,
};

/// Starts the service's workers and returns the address that `/agent/*` is served at (a port 0 picks a free one).
pub async fn start(context: Context) -> anyhow::Result<SocketAddr> {
    let config: ToolGatewaySettings = context.settings.section("tool_gateway")?;
    let hops_max = context.settings.value("resolver.hops_max")?.unwrap_or(HOPS_MAX_DEFAULT);
    let children_open_max = context.settings.value("orchestrator.children_open_max")?;
    let children_open_max = children_open_max.unwrap_or(CHILDREN_OPEN_MAX_DEFAULT);
    let models = ModelCalls::new(context.settings.section::<Models>("models")?, &config)?;
    let (toolbox, metrics) = (Arc::new(Toolbox::new()), Arc::new(Metrics::new()));
    let external = External::start(&context, &config, models, (Arc::clone(&toolbox), Arc::clone(&metrics)));
    let external = Arc::new(external.await?);
    let shares = Shares::default();
    shares.limit(context.topology.limits.notification_bytes_max);
    let watch = shares.clone().watch(context.database.clone(), context.shutdown.token());
    context.shutdown.spawn("shares of the outbox", watch);
    let executor = Executor {
        shares,
        database: context.database.clone(),
        root: context.root().clone(),
        outbox: context.outbox.clone(),
        toolbox,
        statement_timeout_ms: config.statement_timeout_ms.get(),
        branches: config.branch_limits(hops_max, children_open_max),
        artifact_account_bytes_max: config.artifact_account_bytes_max,
        external: Arc::clone(&external),
        metrics,
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

    if let Some(others) = external.others() {
        context.shutdown.spawn("external calls", sweep(external, others));
    }

    let routes = http::routes(executor, context.connect_callers().await?);
    let artifact_bytes_max = config.artifact_bytes_max.usize();
    let routes =
        Routes::from(routes).with_bodies_of(http::UPLOAD_PATH, artifact_bytes_max, "tool_gateway.artifact_bytes_max");
    Ok(context.serve(config.listen, routes, context.health()).await?)
}
