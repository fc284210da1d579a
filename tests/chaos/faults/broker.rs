//! What is done to nats-server.

use std::time::Duration;

use anyhow::Context;
use async_nats::jetstream;
use devstack::NatsServer;
use tokio::time::{Instant, sleep};

use crate::{
    campaign::Campaign,
    system::{signal, stopped_within},
};

/// Its port may be taken for a moment: a connection attempt to nobody can be given the very port that it is aimed at.
const START_LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn terminate(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    let mut nats = campaign.system.nats.lock().await;
    nats.stop().await?;
    sleep(down).await;
    start(&mut nats).await
}

pub(super) async fn kill(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    let mut nats = campaign.system.nats.lock().await;
    nats.kill().await?;
    sleep(down).await;
    start(&mut nats).await
}

/// What clients see of it is a connection that says nothing.
pub(super) async fn freeze(campaign: &Campaign, time: Duration) -> anyhow::Result<usize> {
    let nats = campaign.system.nats.lock().await;
    let pid = nats.pid().context("nats-server runs")?;
    signal(&[pid], "STOP").await?;
    let hit = stopped_within(pid, Duration::from_secs(1)).await;
    sleep(time).await;
    signal(&[pid], "CONT").await?;
    Ok(hit.into())
}

/// Every stream, consumer and message is gone. What was published over NATS and not yet read is the publishers' to
/// publish again, and ours do.
pub(super) async fn wipe(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    let mut nats = campaign.system.nats.lock().await;
    let wiped_at = campaign.wiping();
    nats.wipe_store().await?;
    sleep(down).await;
    let hits = start(&mut nats).await?;
    drop(nats);
    campaign.publish_again(wiped_at);
    Ok(hits)
}

/// By an admin who should not have.
pub(super) async fn consumer_deleted(campaign: &Campaign, nth: usize) -> anyhow::Result<usize> {
    let nats = campaign.system.nats.lock().await;
    let client = crate::clients::publisher(&campaign.system.nats_url).await?;
    let jetstream = jetstream::new(client);
    let durable = messaging::topology::Durable::ALL[nth % messaging::topology::Durable::ALL.len()];
    let stream = durable.stream().name(&contracts::Root::default());
    let deleted = jetstream.delete_consumer_from_stream(durable.name(), stream).await;
    drop(nats);
    Ok(deleted.is_ok().into())
}

async fn start(nats: &mut NatsServer) -> anyhow::Result<usize> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match nats.restart().await {
            Ok(()) => return Ok(1),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}
