//! Faults of nats-server.

use std::time::Duration;

use anyhow::Context;
use async_nats::jetstream;
use devstack::NatsServer;
use tokio::time::{Instant, sleep};

use crate::{
    campaign::Campaign,
    system::{signal, stopped_within},
};

/// Its port may be taken briefly: a connection attempt to a closed port can get that port as its own.
const START_LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn terminate(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    let mut nats = campaign.system.nats.lock().await;
    nats.stop().await?;
    sleep(down).await;
    start(&mut nats).await
}

/// The server enters lame-duck mode: clients are asked to leave, new ones are refused; then it ends.
pub(super) async fn lame_duck(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    const ASKING: Duration = Duration::from_millis(700);
    let mut nats = campaign.system.nats.lock().await;
    let pid = nats.pid().context("nats-server runs")?;
    signal(&[pid], "USR2").await?;
    sleep(ASKING).await;
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

/// Clients see a silent connection.
pub(super) async fn freeze(campaign: &Campaign, time: Duration) -> anyhow::Result<usize> {
    let nats = campaign.system.nats.lock().await;
    let pid = nats.pid().context("nats-server runs")?;
    signal(&[pid], "STOP").await?;
    let hit = stopped_within(pid, Duration::from_secs(1)).await;
    sleep(time).await;
    signal(&[pid], "CONT").await?;
    Ok(hit.into())
}

/// Every stream, consumer and message is gone. Publishers must republish unread notifications, and ours do.
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

/// A consumer deleted by an admin.
pub(super) async fn consumer_deleted(campaign: &Campaign, nth: usize) -> anyhow::Result<usize> {
    let nats = campaign.system.nats.lock().await;
    let client = crate::clients::publisher(&campaign.system.nats_url).await?;
    let jetstream = jetstream::new(client);
    let durables = messaging::Durable::all();
    let durable = &durables[nth % durables.len()];
    let stream = durable.stream.name(&contracts::Root::default());
    let deleted = jetstream.delete_consumer_from_stream(durable.name(), stream).await;
    drop(nats);
    Ok(deleted.is_ok().into())
}

/// The disk is full, which the server logs; after there is space again, it must be restarted.
pub(super) async fn disk_full(campaign: &Campaign, time: Duration) -> anyhow::Result<usize> {
    let mut nats = campaign.system.nats.lock().await;
    let Some(disk) = &campaign.system.nats_disk else {
        return Ok(0);
    };
    let said = |nats: &NatsServer| nats.lines_with("no space left on device").map(|lines| lines.len());
    let before = said(&nats)?;
    disk.fill()?;
    sleep(time).await;
    let hits = said(&nats)? - before;
    disk.free()?;
    nats.stop().await?;
    start(&mut nats).await?;
    Ok(hits)
}

/// A stream deleted by an admin, with its messages. Publishers republish as after a wiped store.
pub(super) async fn stream_deleted(campaign: &Campaign, nth: usize) -> anyhow::Result<usize> {
    let nats = campaign.system.nats.lock().await;
    let client = crate::clients::publisher(&campaign.system.nats_url).await?;
    let streams = messaging::Stream::ALL;
    let stream = streams[nth % streams.len()].name(&contracts::Root::default());
    let wiped_at = campaign.wiping();
    let deleted = jetstream::new(client).delete_stream(stream).await;
    drop(nats);
    campaign.publish_again(wiped_at);
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
