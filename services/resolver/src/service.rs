//! The wiring: one keeper that leases partitions, a reader for each, and the sweeps.

use std::{net::SocketAddr, sync::Arc};

use axum::Router;
use domain::QueueLimits;
use messaging::topology::PARTITIONS;
use runtime::{Context, EndsWith};
use tokio::sync::Semaphore;

use crate::{
    handlers::notification::NotificationHandler,
    metrics::Metrics,
    partitions::{
        keeper::Keeper,
        reading::{ReaderContext, WRITING_MAX},
    },
    settings::ResolverSettings,
    store::partitions::partitions_ensure,
    sweeps,
};

/// Starts the service's workers. Returns the address of its health pages.
pub async fn start(context: Context) -> anyhow::Result<SocketAddr> {
    let config: ResolverSettings = context.settings.section("resolver")?;
    context
        .at_start(|| partitions_ensure(&context.database, PARTITIONS))
        .await?;
    let replica = context.start_replica(EndsWith::Connection).await?;
    let readers = ReaderContext {
        writing: Arc::new(Semaphore::new(WRITING_MAX)),
        handler: NotificationHandler {
            database: context.database.clone(),
            root: context.root().clone(),
            limits: QueueLimits {
                hops_max: u16::try_from(config.hops_max.get()).unwrap_or(u16::MAX),
                items_max: config.queue_items_max.get(),
            },
            routes: Arc::default(),
            shutdown: context.shutdown.clone(),
        },
        committed: Arc::default(),
        outbox: context.outbox.clone(),
        metrics: Metrics::default(),
        batch_messages_max: config.batch_messages_max.usize(),
        retry_delay: config.retry_delay_ms.duration(),
        retry_delay_max: config.retry_delay_ms_max.duration(),
    };
    let keeper = Keeper {
        context: context.clone(),
        replica,
        readers,
        partitions_max: config.partitions_max.usize(),
        interval: config.claim_interval_ms.duration(),
    };
    context.shutdown.spawn("resolver keeper", keeper.run());
    context
        .shutdown
        .spawn("resolver sweeps", sweeps::run(context.clone(), config.clone()));
    context
        .shutdown
        .spawn("resolver room", sweeps::keep_room(context.clone()));
    context
        .shutdown
        .spawn("resolver unread", sweeps::watch_unread(context.clone()));
    context
        .serve(config.listen, Router::new(), context.health())
        .await
        .map_err(Into::into)
}
