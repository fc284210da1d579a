//! Faults of service processes.

use std::time::Duration;

use tokio::time::sleep;

use super::{POINT_LIMIT, until};
use crate::{
    campaign::Campaign,
    plan::Process,
    system::{aborted, signal, stopped_within},
};

pub(super) async fn kill(campaign: &Campaign, process: Process, down: Duration) -> anyhow::Result<usize> {
    let service = campaign.system.service(process);
    let mut life = service.life().await;
    let hit = life.kill().await?;
    sleep(down).await;
    service.start(&mut life)?;
    Ok(hit.into())
}

pub(super) async fn terminate(campaign: &Campaign, process: Process, down: Duration) -> anyhow::Result<usize> {
    let service = campaign.system.service(process);
    let mut life = service.life().await;
    let hit = life.terminate().await?;
    sleep(down).await;
    service.start(&mut life)?;
    Ok(hit.into())
}

pub(super) async fn crash_point(
    campaign: &Campaign,
    process: Process,
    point: &str,
    down: Duration,
) -> anyhow::Result<usize> {
    let service = campaign.system.service(process);
    let mut life = service.life().await;
    if !life.running() {
        return Ok(0);
    }
    service.arm(point, "die")?;
    let mut ended = life.ended_within(POINT_LIMIT).await?;
    if ended.is_none() && service.is_disarmed() {
        // It reached the point as the limit passed.
        ended = life.ended_within(POINT_LIMIT).await?;
    }
    service.disarm();
    match ended {
        Some(status) if aborted(status) => {
            life.kill().await?; // takes the dead one out
            sleep(down).await;
            service.start(&mut life)?;
            Ok(1)
        }
        Some(status) => {
            life.surprises.push(format!("{} ended with {status}", process.name()));
            life.kill().await?;
            service.start(&mut life)?;
            Ok(0)
        }
        // The point may have been reached in between; then the supervisor finds the process dead.
        None => Ok(0),
    }
}

/// Stopped, then continued: past its lease it is a zombie.
pub(super) async fn freeze(campaign: &Campaign, process: Process, time: Duration) -> anyhow::Result<usize> {
    let service = campaign.system.service(process);
    let mut life = service.life().await;
    let Some(pid) = life.pid() else { return Ok(0) };
    signal(&[pid], "STOP").await?;
    let hit = stopped_within(pid, Duration::from_secs(1)).await;
    if hit && !campaign.stub.in_flight_of(&process.name()).is_empty() {
        campaign.zombie_with_work();
    }
    sleep(time).await;
    signal(&[pid], "CONT").await?;
    Ok(hit.into())
}

/// Frozen between two durable steps.
pub(super) async fn freeze_at_point(
    campaign: &Campaign,
    process: Process,
    point: &str,
    time: Duration,
) -> anyhow::Result<usize> {
    let service = campaign.system.service(process);
    let mut life = service.life().await;
    let Some(pid) = life.pid() else { return Ok(0) };
    service.arm(point, "freeze")?;
    let reached = until(POINT_LIMIT, || service.is_disarmed()).await;
    service.disarm();
    let hit = reached && stopped_within(pid, Duration::from_secs(1)).await;
    if hit {
        sleep(time).await;
    }
    // Also if it was reached at the last moment.
    signal(&[pid], "CONT").await?;
    Ok(hit.into())
}

/// Kills all services, then the broker, then the database; and restarts everything.
pub(super) async fn all_die(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    let system = &campaign.system;
    let mut lives = Vec::new();
    for service in &system.services {
        lives.push((service, service.life().await));
    }
    let mut hits = 0;
    for (_, life) in &mut lives {
        hits += usize::from(life.kill().await?);
    }
    super::broker::kill(campaign, down).await?;
    super::database::crash(campaign, down).await?;
    for (service, life) in &mut lives {
        service.start(life)?;
    }
    Ok(hits)
}

/// Restarts one after the other, each after the previous one is ready.
pub(super) async fn rolling_restart(campaign: &Campaign) -> anyhow::Result<usize> {
    const READY_LIMIT: Duration = Duration::from_secs(8);
    let mut hits = 0;
    for service in &campaign.system.services {
        let mut life = service.life().await;
        hits += usize::from(life.terminate().await?);
        service.start(&mut life)?;
        drop(life);
        // Other faults continue, so it may not become ready for a while.
        let _ = tokio::time::timeout(READY_LIMIT, campaign.system.ready(service)).await;
    }
    Ok(hits)
}
