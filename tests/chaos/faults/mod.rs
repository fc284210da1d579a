//! Injects the scheduled faults. Each waits for its target, acts, heals, and reports its number of hits; a fault without a hit does
//! not count as fired.

mod broker;
mod database;
mod messages;
mod network;
mod services;

pub(crate) use database::TRIPWIRES;

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::sleep;

use crate::{
    campaign::Campaign,
    plan::{Fault, PlannedFault},
};

/// The clients decide how often a crash point is reached; a fault waits this long for it.
const POINT_LIMIT: Duration = Duration::from_secs(4);
/// The stub fails any request.
const SERVED_LIMIT: Duration = Duration::from_secs(6);
const POLL: Duration = Duration::from_millis(10);

/// Number of hits.
pub(crate) async fn run(campaign: &Campaign, planned: &PlannedFault) -> anyhow::Result<usize> {
    let from = OffsetDateTime::now_utc();
    let (target, hits) = perform(campaign, planned).await?;
    if hits > 0 {
        campaign.book.fired(planned.kind, target, from);
    }
    Ok(hits)
}

/// The target, and the number of hits.
async fn perform(campaign: &Campaign, planned: &PlannedFault) -> anyhow::Result<(String, usize)> {
    let nats = || "nats".to_owned();
    let postgres = || "postgres".to_owned();
    Ok(match planned.fault {
        Fault::Kill { process, down_ms } => (process.name(), services::kill(campaign, process, ms(down_ms)).await?),
        Fault::Terminate { process, down_ms } => (
            process.name(),
            services::terminate(campaign, process, ms(down_ms)).await?,
        ),
        Fault::CrashPoint {
            process,
            point,
            down_ms,
        } => (
            process.name(),
            services::crash_point(campaign, process, point, ms(down_ms)).await?,
        ),
        Fault::Freeze { process, for_ms } => (process.name(), services::freeze(campaign, process, ms(for_ms)).await?),
        Fault::FreezeAtPoint { process, point, for_ms } => (
            process.name(),
            services::freeze_at_point(campaign, process, point, ms(for_ms)).await?,
        ),
        Fault::AllDie { down_ms } => ("everything".to_owned(), services::all_die(campaign, ms(down_ms)).await?),
        Fault::RollingRestart => ("every service".to_owned(), services::rolling_restart(campaign).await?),
        Fault::NatsTerminate { down_ms } => (nats(), broker::terminate(campaign, ms(down_ms)).await?),
        Fault::NatsLameDuck { down_ms } => (nats(), broker::lame_duck(campaign, ms(down_ms)).await?),
        Fault::NatsKill { down_ms } => (nats(), broker::kill(campaign, ms(down_ms)).await?),
        Fault::NatsFreeze { for_ms } => (nats(), broker::freeze(campaign, ms(for_ms)).await?),
        Fault::NatsWipe { down_ms } => (nats(), broker::wipe(campaign, ms(down_ms)).await?),
        Fault::NatsDiskFull { for_ms } => (nats(), broker::disk_full(campaign, ms(for_ms)).await?),
        Fault::ConsumerDeleted { nth } => (nats(), broker::consumer_deleted(campaign, nth).await?),
        Fault::StreamDeleted { nth } => (nats(), broker::stream_deleted(campaign, nth).await?),
        Fault::PostgresRestart { down_ms } => (postgres(), database::restart(campaign, ms(down_ms)).await?),
        Fault::PostgresCrash { down_ms } => (postgres(), database::crash(campaign, ms(down_ms)).await?),
        Fault::PostgresKill { down_ms } => (postgres(), database::kill(campaign, ms(down_ms)).await?),
        Fault::BackendKill { nth } => (postgres(), database::backend_kill(campaign, nth).await?),
        Fault::SessionsTerminate { process } => (
            process.name(),
            database::sessions_terminate(campaign, process.role()).await?,
        ),
        Fault::PostgresFreeze { for_ms } => (postgres(), database::freeze(campaign, ms(for_ms)).await?),
        Fault::ConnectionsTaken { for_ms } => (postgres(), database::connections_taken(campaign, ms(for_ms)).await?),
        Fault::StatementsFail { sqlstate, count } => {
            (postgres(), database::statements_fail(campaign, sqlstate, count).await?)
        }
        Fault::CommitLost { process, count } => (process.name(), network::commit_lost(campaign, process, count).await),
        Fault::Network { process, link, harm } => (process.name(), network::harm(campaign, process, link, harm).await),
        Fault::ClientsGone { count, choice } => {
            let hits = messages::clients_gone(campaign, planned.number, count, choice).await;
            ("clients".to_owned(), hits)
        }
        Fault::Provider { failure, count } => {
            campaign.stub.fail(planned.number, failure, count);
            let served = || campaign.stub.served(planned.number);
            until(SERVED_LIMIT, || served() >= count).await;
            campaign.stub.heal(planned.number);
            ("provider".to_owned(), served())
        }
        Fault::Repeat { count, choice } => ("clients".to_owned(), messages::repeat(campaign, count, choice).await),
        Fault::Conflict { choice } => ("clients".to_owned(), messages::conflict(campaign, choice).await?),
        Fault::Replay { count, choice } => (nats(), messages::replay(campaign, count, choice).await?),
        Fault::OldGeneration { count, choice } => (nats(), messages::old_generation(campaign, count, choice).await?),
        Fault::Burst { count, choice } => {
            let hits = messages::burst(campaign, planned.number, count, choice).await;
            ("clients".to_owned(), hits)
        }
        Fault::KeyReused { choice } => ("clients".to_owned(), messages::key_reused(campaign, choice).await),
        Fault::Poison { nth } => (
            "clients".to_owned(),
            messages::poison(campaign, planned.number, nth).await,
        ),
        Fault::Oversize { what } => {
            let hits = messages::oversize(campaign, planned.number, what).await;
            ("clients".to_owned(), hits)
        }
    })
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Waits for a condition; false after the limit.
async fn until(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = tokio::time::Instant::now() + limit;
    while !is_so() {
        if tokio::time::Instant::now() > deadline {
            return false;
        }
        sleep(POLL).await;
    }
    true
}
