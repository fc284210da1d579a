//! Faults of Postgres.

use std::time::Duration;

use anyhow::Context;
use devstack::PostgresServer;
use futures::future::join_all;
use sqlx::{Connection, Executor, PgConnection, Row};
use storage::Role;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::POLL;
use crate::{
    campaign::Campaign,
    system::{family, signal, stopped_within},
};

/// Its port may be taken briefly, as the broker's; after SIGKILL the last backend must end first.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The server allows two hundred.
const CONNECTIONS_AT_ONCE: usize = 50;
const TAKING_LIMIT: Duration = Duration::from_secs(8);
const TRIPPED_LIMIT: Duration = Duration::from_secs(4);

pub(super) async fn restart(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    let mut postgres = campaign.system.postgres.lock().await;
    postgres.stop().await?;
    sleep(down).await;
    start(&mut postgres).await
}

pub(super) async fn crash(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    let mut postgres = campaign.system.postgres.lock().await;
    postgres.crash().await?;
    sleep(down).await;
    start(&mut postgres).await
}

pub(super) async fn kill(campaign: &Campaign, down: Duration) -> anyhow::Result<usize> {
    let mut postgres = campaign.system.postgres.lock().await;
    postgres.kill().await?;
    sleep(down).await;
    start(&mut postgres).await
}

/// SIGKILL to one backend: the server ends all others and recovers by itself.
pub(super) async fn backend_kill(campaign: &Campaign, nth: usize) -> anyhow::Result<usize> {
    let _postgres = campaign.system.postgres.lock().await;
    const BACKENDS: &str = "select pid from pg_stat_activity where application_name like 'signalbox-%' order by pid";
    let Ok(rows) = sqlx::query(BACKENDS).fetch_all(&campaign.system.observer).await else {
        return Ok(0);
    };
    let pids: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let Some(pid) = pids.get(nth % pids.len().max(1)) else {
        return Ok(0);
    };
    signal(&[u32::try_from(*pid).context("a pid is positive")?], "KILL").await?;
    Ok(1)
}

/// An administrator closes every connection of one service.
pub(super) async fn sessions_terminate(campaign: &Campaign, role: Role) -> anyhow::Result<usize> {
    let _postgres = campaign.system.postgres.lock().await;
    const END: &str =
        "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity where application_name = $1";
    let name = format!("signalbox-{}", role.service());
    let ended = sqlx::query(END).bind(name).fetch_one(&campaign.system.observer).await;
    Ok(ended.map_or(0, |row| usize::try_from(row.get::<i64, _>(0)).unwrap_or_default()))
}

/// Freezes the postmaster and all backends: connections stay open and silent.
pub(super) async fn freeze(campaign: &Campaign, time: Duration) -> anyhow::Result<usize> {
    let postgres = campaign.system.postgres.lock().await;
    let postmaster = postgres.pid().context("Postgres runs")?;
    signal(&[postmaster], "STOP").await?;
    let hit = stopped_within(postmaster, Duration::from_secs(1)).await;
    // No new backends start now.
    let all = family(postmaster);
    signal(&all, "STOP").await?;
    sleep(time).await;
    signal(&all, "CONT").await?;
    Ok(hit.into())
}

/// Takes all connections, those of the services first.
pub(super) async fn connections_taken(campaign: &Campaign, time: Duration) -> anyhow::Result<usize> {
    let _postgres = campaign.system.postgres.lock().await;
    const END_ALL: &str =
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'signalbox-%'";
    let Ok(mut first) = PgConnection::connect(&campaign.system.database_url).await else {
        return Ok(0);
    };
    let mut taken = Vec::new();
    let mut refused = 0;
    let deadline = Instant::now() + TAKING_LIMIT;
    while refused == 0 && Instant::now() < deadline {
        // Services reconnect at once, and then no connection is free.
        let _ = first.execute(END_ALL).await;
        let connecting = (0..CONNECTIONS_AT_ONCE).map(|_| PgConnection::connect(&campaign.system.database_url));
        for connected in join_all(connecting).await {
            match connected {
                Ok(connection) => taken.push(connection),
                Err(_) => refused += 1,
            }
        }
    }
    sleep(time).await;
    for connection in taken {
        // Closed in order, so that the server's log is not flooded.
        let _ = connection.close().await;
    }
    let _ = first.close().await;
    Ok(refused)
}

/// The next writes of important tables fail with a serialization failure, deadlock or lock timeout.
pub(super) async fn statements_fail(campaign: &Campaign, sqlstate: &str, count: u64) -> anyhow::Result<usize> {
    /// One at a time: they share a sequence.
    static ONE: Mutex<()> = Mutex::const_new(());
    const ARM: &str = "update chaos.trip set sqlstate = $1, hits_until = (select last_value from chaos.hits) + $2
                       returning hits_until";
    const HITS: &str = "select last_value from chaos.hits";
    const DISARM: &str = "update chaos.trip set hits_until = 0";
    let observer = &campaign.system.observer;
    let _one = ONE.lock().await;
    let count = i64::try_from(count).unwrap_or(1);
    let deadline = Instant::now() + TRIPPED_LIMIT;
    // The database may be away because of other faults; what the answer was lost of is disarmed below.
    let armed = sqlx::query(ARM).bind(sqlstate).bind(count).fetch_one(observer).await;
    let mut hits = 0;
    if let Ok(armed) = armed {
        let until: i64 = armed.get(0);
        while hits < count && Instant::now() < deadline {
            sleep(POLL * 5).await;
            if let Ok(row) = sqlx::query(HITS).fetch_one(observer).await {
                hits = row.get::<i64, _>(0) - (until - count);
            }
        }
    }
    let deadline = Instant::now() + START_LIMIT;
    while let Err(error) = sqlx::query(DISARM).execute(observer).await {
        if Instant::now() > deadline {
            return Err(error).context("could not disarm failing statements");
        }
        sleep(POLL * 20).await;
    }
    Ok(usize::try_from(hits).unwrap_or_default())
}

/// Triggers that fail on command. They count with a sequence, since its value survives a rollback.
pub(crate) const TRIPWIRES: &str = r"
create schema chaos;
grant usage on schema chaos to public;
create sequence chaos.hits;
select nextval('chaos.hits');
create table chaos.trip (sqlstate text not null, hits_until bigint not null);
insert into chaos.trip values ('40001', 0);
create function chaos.trip() returns trigger language plpgsql security definer as $$
declare state text;
begin
    select sqlstate into state from chaos.trip where hits_until > (select last_value from chaos.hits);
    if found then
        perform nextval('chaos.hits');
        raise exception 'as the schedule wants' using errcode = state;
    end if;
    return null;
end $$;
do $$
declare name text;
begin
    foreach name in array array['session', 'notification', 'turn', 'tool_call', 'message', 'task', 'outbox',
                                'resolver_partition'] loop
        execute format('create trigger chaos after insert or update on public.%I for each statement
                        execute function chaos.trip()', name);
    end loop;
end $$;
";

async fn start(postgres: &mut PostgresServer) -> anyhow::Result<usize> {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match postgres.restart().await {
            Ok(()) => return Ok(1),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}
