//! One measurement: a subject does the work once, on its own servers. The outcome is verified, then the figures are taken. A run
//! that lost, doubled or reordered anything is an error without figures.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};

use crate::{
    book::Seen,
    counters::{self, Counters},
    figures::{Cost, Figures, Memory},
    listen::listen,
    load::{self, Moments},
    people,
    progress::{self, Done, Progress},
    stage::{Servers, Stage},
    started::Started,
    subject::Subject,
    usage::{self, Snapshot},
    work::{Pace, Work},
};

/// Pause after a start before the process counts as idle.
const SETTLING: Duration = Duration::from_secs(2);

pub(crate) async fn measure(
    servers: &mut Servers,
    subject: Subject,
    work: &Work,
    floor: Option<&Path>,
) -> anyhow::Result<Figures> {
    let mut stage = servers.stage(work, subject.has_users()).await?;
    let figures = async {
        subject.prepare(&stage, work).await?;
        servers.keep_filled(&mut stage, work).await?;
        worked(&stage, subject, work, floor).await
    };
    let figures = figures.await;
    let figures = figures.with_context(|| format!("{} in {}", subject.name(), stage.directory.display()));
    servers.clear(stage).await?;
    figures
}

async fn worked(stage: &Stage, subject: Subject, work: &Work, floor: Option<&Path>) -> anyhow::Result<Figures> {
    let publisher = load::connect(&stage.nats.url_of(messaging::User::Publisher.name())).await?;
    let moments = Moments::new(work.notifications);
    if work.pace == Pace::Backlog {
        load::publish(&publisher, work, &moments).await?;
    }
    let listening = match (subject, work.pace) {
        (Subject::Signalbox, Pace::Rate(_)) => {
            Some(listen(&publisher, work.notifications, Arc::clone(&moments)).await?)
        }
        _ => None,
    };
    counters::forget(&stage.observer).await?;
    let counted = Counters::of(&stage.observer).await?;
    let since = progress::now(&stage.observer).await?;
    let before_start = Snapshot::take()?;
    let start = Instant::now();
    let mut started = subject.start(stage, work, floor).await?;
    let idle = memory(&started)?;
    let ready_ms = started.ready_in.as_secs_f64() * 1e3;
    if let Pace::Idle(time) = work.pace {
        sleep(SETTLING).await;
        return Ok(Figures {
            memory: memory(&started)?,
            ready_ms,
            ..at_rest(stage, &started, time).await?
        });
    }
    if work.pace == Pace::Steers {
        let latency = load::steer(&publisher, work, &moments, &stage.provider).await?;
        started.stop().await?;
        return Ok(Figures {
            notifications: work.notifications,
            latency: Some(latency),
            memory: idle,
            ready_ms,
            ..Figures::default()
        });
    }
    if let Pace::Asks(people) = work.pace {
        let (latency, per_s) = people::ask(stage, &started, work, people).await?;
        let memory = with_idle(memory(&started)?, idle);
        started.stop().await?;
        return Ok(Figures {
            notifications: work.notifications,
            recorded: work.notifications,
            per_s,
            latency: Some(latency),
            memory,
            ready_ms,
            ..Figures::default()
        });
    }
    // A backlog is processed from the first moment, so the start of the services is part of the work.
    let (begun, before) = match work.pace {
        Pace::Backlog => (start, before_start),
        Pace::Live | Pace::Rate(_) | Pace::Idle(_) | Pace::Steers | Pace::Asks(_) => {
            (Instant::now(), Snapshot::take()?)
        }
    };
    let progress = Progress {
        stage,
        subject,
        work,
        since,
        begun,
    };
    let done = progress.until_done(&mut started, &publisher, &moments).await?;
    let after = Snapshot::take()?;
    let elapsed = begun.elapsed();
    let foreign = after.cpu_of_others(&before, &[std::process::id(), stage.postgres_pid]);
    let cost = |pids: &[u32]| {
        let cpu = after.cpu(pids).saturating_sub(before.cpu(pids));
        cpu.as_secs_f64() * 1e6 / f64::from(done.recorded.max(1))
    };
    let cpu_ms = Cost {
        own: cost(&started.pids()?),
        postgres: cost(&[stage.postgres_pid]),
        nats: cost(&[stage.nats.pid().context("NATS is not running")?]),
        provider: cost(&[stage.provider.pid()?]),
    };
    let memory = with_idle(memory(&started)?, idle);
    let seen = stage.provider.seen().await?;
    check(work, &done, &seen)?;
    let said = started.stop().await?;
    // All connections are closed now, so their counters are flushed.
    let counted = Counters::of(&stage.observer).await?.since(counted);
    let latency = match listening {
        Some(listening) if done.is_whole(work) => Some(listening.await.context("the listener panicked")??),
        Some(listening) => {
            listening.abort();
            None
        }
        None => said.last().and_then(|said| serde_json::from_str(said).ok()),
    };
    let per_notification = |count: i64| {
        #[expect(clippy::cast_precision_loss, reason = "counts of one run")]
        let count = count as f64;
        count / f64::from(done.recorded.max(1))
    };
    Ok(Figures {
        notifications: work.notifications,
        recorded: done.recorded,
        per_s: f64::from(done.recorded) / done.recorded_in.as_secs_f64(),
        per_s_whole: done
            .followed_in
            .map(|time| f64::from(done.recorded) / time.as_secs_f64()),
        latency,
        cpu_ms,
        memory,
        commits: per_notification(counted.commits),
        statements: per_notification(counted.statements),
        rows: per_notification(counted.rows),
        top: match subject {
            Subject::Signalbox => counters::top(&stage.observer, done.recorded).await?,
            Subject::Floor | Subject::FloorInTwo | Subject::Peer(_) => Vec::new(),
        },
        in_flight_max: seen.in_flight_max,
        repeated: seen.repeated,
        ready_ms,
        killed: done.killed,
        foreign_cores: foreign.as_secs_f64() / elapsed.as_secs_f64(),
    })
}

/// The cost of an idle subject.
async fn at_rest(stage: &Stage, started: &Started, time: Duration) -> anyhow::Result<Figures> {
    let before = Snapshot::take()?;
    sleep(time).await;
    let after = Snapshot::take()?;
    let cost = |pids: &[u32]| {
        let cpu = after.cpu(pids).saturating_sub(before.cpu(pids));
        cpu.as_secs_f64() * 1e3 / time.as_secs_f64()
    };
    let foreign = after.cpu_of_others(&before, &[std::process::id(), stage.postgres_pid]);
    Ok(Figures {
        cpu_ms: Cost {
            own: cost(&started.pids()?),
            postgres: cost(&[stage.postgres_pid]),
            nats: cost(&[stage.nats.pid().context("NATS is not running")?]),
            provider: cost(&[stage.provider.pid()?]),
        },
        foreign_cores: foreign.as_secs_f64() / time.as_secs_f64(),
        ..Figures::default()
    })
}

fn memory(started: &Started) -> anyhow::Result<Vec<Memory>> {
    let pids = started.pids()?;
    let processes = started.processes.iter().zip(pids);
    processes
        .map(|(process, pid)| {
            let (idle_mib, most_mib) = usage::memory_mib(pid).context("a process has ended")?;
            Ok(Memory {
                process: process.name.clone(),
                idle_mib,
                most_mib,
            })
        })
        .collect()
}

fn with_idle(mut memory: Vec<Memory>, idle: Vec<Memory>) -> Vec<Memory> {
    for (memory, idle) in memory.iter_mut().zip(idle) {
        memory.idle_mib = idle.idle_mib;
    }
    memory
}

/// The checks of every subject. Calls in progress at a kill are repeated.
fn check(work: &Work, done: &Done, seen: &Seen) -> anyhow::Result<()> {
    let is_whole = done.is_whole(work);
    let is_right = seen.out_of_order == 0
        && seen.overlapping == 0
        && seen.unmarked == 0
        && (work.kills || seen.repeated == 0)
        && (!is_whole || seen.notifications == u64::from(work.notifications))
        && (!is_whole || seen.calls == seen.notifications * u64::from(work.answer.calls_a_turn()) + seen.repeated);
    if !is_right {
        bail!("lost, doubled or out of order: {seen:?}");
    }
    Ok(())
}
